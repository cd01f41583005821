//! Doubts about what is known of groups: something else may be true, though the sequence number is the same.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::lock;
use crate::names::VgName;

/// Which groups are in doubt.
#[derive(Debug, Default)]
pub(super) struct Doubts(Mutex<BTreeMap<VgName, Doubt>>);

#[derive(Debug, Default)]
struct Doubt {
    raised: u64,
    /// So many of them were answered by a report that began after they were raised.
    answered: u64,
}

/// All doubts about a group that were raised until a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct UntilNow(u64);

impl Doubts {
    pub(super) fn raise(&self, group: &VgName) {
        lock(&self.0).entry(group.clone()).or_default().raised += 1;
    }

    pub(super) fn about(&self, group: &VgName) -> bool {
        lock(&self.0).get(group).is_some_and(|doubt| doubt.raised > doubt.answered)
    }

    /// What a report that begins now can answer. Until it has come, the doubts hold for everybody else.
    pub(super) fn until_now(&self, group: &VgName) -> UntilNow {
        UntilNow(lock(&self.0).get(group).map_or(0, |doubt| doubt.raised))
    }

    pub(super) fn answer(&self, group: &VgName, UntilNow(raised): UntilNow) {
        if let Some(doubt) = lock(&self.0).get_mut(group) {
            doubt.answered = doubt.answered.max(raised);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_holds_until_a_report_that_began_after_it_has_come() {
        let (doubts, group) = (Doubts::default(), VgName::parse("vg").unwrap());
        doubts.answer(&group, doubts.until_now(&group));
        doubts.raise(&group);
        let first = doubts.until_now(&group);
        assert!(doubts.about(&group), "its report has begun, and not come");
        doubts.raise(&group);
        doubts.answer(&group, first);
        assert!(doubts.about(&group), "what was raised meanwhile is perhaps not in it");
        doubts.answer(&group, doubts.until_now(&group));
        assert!(!doubts.about(&group));
        doubts.answer(&group, first);
        assert!(!doubts.about(&group) && !doubts.about(&VgName::parse("other").unwrap()));
    }
}
