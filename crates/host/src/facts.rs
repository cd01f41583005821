//! What we know of a volume, kept in its tags beside the data.
//!
//! Tags only ever forbid, or permit on an empty probe. A volume without them was made by somebody else, and is judged
//! by its bytes. Tags of ours that this version does not know are kept.

use uuid::Uuid;

use crate::lvm::Volume;
use crate::names::{LvName, Tag, escape, unescape};
use crate::units::Bytes;

const PREFIX: &str = "lvms.io/";

/// The newest way of keeping facts that this version understands. A volume that says a larger one is not changed.
const FORMAT: u32 = 1;

/// What the tags of a volume say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// The name that its owner gave it.
    pub name: Option<String>,
    /// The claim that it was made for, as `namespace/name`.
    pub claim: Option<String>,
    /// Whether it is a snapshot that somebody asked for.
    pub snapshot: bool,
    /// What it was made from.
    pub source: Option<String>,
    /// When it was made, in seconds since 1970.
    pub created: Option<u64>,
    /// Whether it was made for use without a filesystem: all its bytes are zero or its user's.
    pub block: bool,
    /// Whether it was copied from a thick volume that was never zeroed: what none of its users has written may be
    /// somebody else's.
    pub former: bool,
    /// The identity that its filesystem has or is going to have.
    pub fsid: Option<Uuid>,
    /// Whether its bytes are somebody's: it is never formatted again.
    pub used: bool,
    /// The kind that its filesystem has or is going to have.
    pub filesystem: Option<String>,
    /// What it is being copied from: it is not finished.
    pub copying: Option<String>,
    /// From where on it is being filled with zeros: it is not finished.
    pub zeroing: Option<Bytes>,
    /// The volume for which it is needed for a while.
    pub temporary: Option<LvName>,
    /// The way in which these facts are kept, if it is newer than this version.
    pub newer_format: Option<u32>,
    /// Tags that whoever wants the volume gives it when it is made; they say nothing to us, and are not read.
    pub others: Vec<Tag>,
}

impl Facts {
    /// Those of a volume.
    pub fn of(volume: &Volume) -> Facts {
        Facts::read(&volume.tags)
    }

    fn read(tags: &[String]) -> Facts {
        let mut facts = Facts::default();
        for fact in tags.iter().filter_map(|tag| tag.strip_prefix(PREFIX)) {
            let (key, value) = fact.split_once('=').unwrap_or((fact, ""));
            match key {
                "name" => facts.name = unescape(value),
                "claim" => facts.claim = unescape(value),
                "snapshot" => facts.snapshot = true,
                "source" => facts.source = unescape(value),
                "created" => facts.created = value.parse().ok(),
                "block" => facts.block = true,
                "former" => facts.former = true,
                "fsid" => facts.fsid = value.parse().ok(),
                "used" => facts.used = true,
                "fs" => facts.filesystem = unescape(value),
                "copying" => facts.copying = unescape(value),
                // A place that cannot be read is the beginning: more zeros than needed, never fewer.
                "zeroing" => facts.zeroing = Some(Bytes(value.parse().unwrap_or_default())),
                "temporary" => facts.temporary = LvName::parse(value).ok(),
                "format" => {
                    facts.newer_format =
                        value.parse().ok().or(Some(u32::MAX)).filter(|format| *format > FORMAT);
                }
                _ => {}
            }
        }
        facts
    }

    /// The tags that say this.
    pub fn tags(&self) -> Vec<Tag> {
        let flag = |on: bool, key: &str| on.then(|| key.to_owned());
        let text = |value: &Option<String>, key: &str| {
            value.as_ref().map(|value| format!("{key}={}", escape(value)))
        };
        let facts = [
            text(&self.name, "name"),
            text(&self.claim, "claim"),
            flag(self.snapshot, "snapshot"),
            text(&self.source, "source"),
            self.created.map(|created| format!("created={created}")),
            flag(self.block, "block"),
            flag(self.former, "former"),
            self.fsid.map(|fsid| format!("fsid={fsid}")),
            flag(self.used, "used"),
            text(&self.filesystem, "fs"),
            text(&self.copying, "copying"),
            self.zeroing.map(|from| format!("zeroing={}", from.0)),
            self.temporary.as_ref().map(|owner| format!("temporary={owner}")),
        ];
        // An escaped text is longer than LVM allows only if the text was; who made it has checked that.
        let ours = facts.into_iter().flatten().filter_map(|fact| Tag::parse(&format!("{PREFIX}{fact}")).ok());
        ours.chain(self.others.iter().cloned()).collect()
    }

    /// Whether a tag with this text would be one of those with which facts are kept.
    pub fn is_kept_in(tag: &str) -> bool {
        tag.starts_with(PREFIX)
    }

    /// Tags to add and tags to remove, so that what was known becomes this.
    pub fn since(&self, before: &Facts) -> (Vec<Tag>, Vec<Tag>) {
        let (now, then) = (self.tags(), before.tags());
        let only =
            |these: &[Tag], those: &[Tag]| these.iter().filter(|tag| !those.contains(tag)).cloned().collect();
        (only(&now, &then), only(&then, &now))
    }

    /// Whether the making of a volume of this size was not finished. Zeros from its end on are none: a growth was marked,
    /// and came to nothing.
    pub fn is_unfinished(&self, size: Bytes) -> bool {
        self.copying.is_some() || self.zeroing.is_some_and(|from| from < size)
    }

    /// Whether we made it.
    pub fn is_ours(&self) -> bool {
        self.name.is_some() || self.fsid.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tags_of_others_say_nothing_and_a_newer_format_is_noticed() {
        let tags = ["topolvm", "lvms.io/future=1", "lvms.io/format=2"].map(str::to_owned);
        let facts = Facts::read(&tags);
        assert_eq!(facts, Facts { newer_format: Some(2), ..Facts::default() });
        assert_eq!(Facts::read(&["lvms.io/format=1".to_owned()]), Facts::default());
        assert!(Facts::read(&["lvms.io/format=x".to_owned()]).newer_format.is_some());
    }

    #[test]
    fn only_what_changed_is_written() {
        let before = Facts { name: Some("a".into()), zeroing: Some(Bytes::ZERO), ..Facts::default() };
        let after = Facts { zeroing: None, used: true, ..before.clone() };
        let (add, remove) = after.since(&before);
        assert_eq!(add.iter().map(Tag::as_str).collect::<Vec<_>>(), ["lvms.io/used"]);
        assert_eq!(remove.iter().map(Tag::as_str).collect::<Vec<_>>(), ["lvms.io/zeroing=0"]);
    }

    #[test]
    fn a_growth_that_came_to_nothing_leaves_no_unfinished_volume() {
        let marked = Facts { zeroing: Some(Bytes::mib(64)), ..Facts::default() };
        assert!(!marked.is_unfinished(Bytes::mib(64)));
        assert!(marked.is_unfinished(Bytes::mib(68)));
        assert!(Facts { copying: Some("vg/v".into()), ..marked }.is_unfinished(Bytes::mib(64)));
    }

    #[test]
    fn tags_of_whoever_wants_a_volume_are_given_once_and_never_taken_away() {
        let wished = Facts { used: true, others: vec![Tag::parse("theirs").unwrap()], ..Facts::default() };
        let tags: Vec<String> = wished.tags().iter().map(ToString::to_string).collect();
        assert_eq!(tags, ["lvms.io/used", "theirs"]);
        let read = Facts::read(&tags);
        assert!(read.others.is_empty());
        let (add, remove) = Facts { block: true, ..read.clone() }.since(&read);
        assert_eq!((add.len(), remove.len()), (1, 0));
    }

    proptest! {
        #[test]
        fn facts_survive_being_put_into_tags(
            name in proptest::option::of("\\PC{1,60}"),
            source in proptest::option::of("[a-z0-9-]{1,60}"),
            zeroing in proptest::option::of(any::<u64>()),
            flags in any::<[bool; 4]>(),
            created in proptest::option::of(any::<u64>()),
        ) {
            let facts = Facts {
                name, source, created,
                zeroing: zeroing.map(Bytes),
                snapshot: flags[0], block: flags[1], used: flags[2], former: flags[3],
                ..Facts::default()
            };
            let tags: Vec<String> = facts.tags().iter().map(ToString::to_string).collect();
            prop_assert_eq!(Facts::read(&tags), facts);
        }
    }
}
