//! `lvmd.yaml`, as TopoLVM has it: the same fields, the same defaults, the same leniency. All mistakes are told at
//! once, each with its line, its field and a remedy.

use std::collections::BTreeSet;
use std::fmt;

use super::yaml::{self, Node, Value};
use super::{ClassKind, Desired, DeviceClass};
use crate::names::{LvName, NameError, VgName};
use crate::units::Bytes;

/// What stays free in a volume group unless the file says otherwise.
const SPARE_GIB: u64 = 10;

/// A thin pool can promise at least what it has.
const LEAST_RATIO: f64 = 1.0;

/// One thing that is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Where.
    pub line: u64,
    /// Which field: `device-classes[1].stripe-size`.
    pub field: String,
    /// What is wrong, and what to do.
    pub problem: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "line {}: ", self.line)?;
        if !self.field.is_empty() {
            write!(out, "{}: ", self.field)?;
        }
        out.write_str(&self.problem)
    }
}

/// What a file says.
#[derive(Debug, Clone, PartialEq)]
pub struct Read {
    /// The configuration.
    pub desired: Desired,
    /// What has no effect, and was perhaps meant to have one.
    pub remarks: Vec<Mistake>,
}

/// Reads a file.
pub fn read(text: &str) -> Result<Read, Vec<Mistake>> {
    let root = match yaml::parse(text) {
        Ok(root) => root,
        Err((line, problem)) => {
            let problem = format!("this is no YAML: {problem}");
            return Err(vec![Mistake { line, field: String::new(), problem }]);
        }
    };
    let mut reader = Reader::default();
    let desired = reader.file(&root);
    if reader.mistakes.is_empty() {
        Ok(Read { desired, remarks: reader.remarks })
    } else {
        reader.mistakes.sort_by_key(|mistake| mistake.line);
        Err(reader.mistakes)
    }
}

#[derive(Default)]
struct Reader {
    mistakes: Vec<Mistake>,
    remarks: Vec<Mistake>,
}

/// What the classes that were read have, and no other can have.
#[derive(Default)]
struct Taken {
    names: BTreeSet<String>,
    places: BTreeSet<(VgName, Option<LvName>)>,
    default: Option<String>,
}

/// A node with the name by which people find it.
#[derive(Clone)]
struct Field<'a> {
    node: &'a Node,
    name: String,
}

impl<'a> Field<'a> {
    fn get(&self, key: &str) -> Option<Field<'a>> {
        let name = if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) };
        Some(Field { node: self.node.get(key)?, name })
    }
}

const FILE: [&str; 4] = ["socket-name", "device-classes", "lvcreate-option-classes", "lvm-command-prefix"];
const CLASS: [&str; 9] = [
    "name",
    "volume-group",
    "default",
    "spare-gb",
    "stripe",
    "stripe-size",
    "lvcreate-options",
    "type",
    "thin-pool",
];
const POOL: [&str; 2] = ["name", "overprovision-ratio"];
const OPTION_CLASS: [&str; 2] = ["name", "options"];

impl Reader {
    fn file(&mut self, root: &Node) -> Desired {
        let root = Field { node: root, name: String::new() };
        if !matches!(root.node.value, Value::Map(_) | Value::Null) {
            self.wrong(
                &root,
                format!("the file is {}: write `device-classes:` and a list", root.node.describe()),
            );
            return Desired::default();
        }
        self.remark_unknown(&root, &FILE);
        let mut desired = Desired {
            socket_name: self.text(&root, "socket-name"),
            lvm_command_prefix: root.get("lvm-command-prefix").map(|field| self.texts(&field)),
            ..Desired::default()
        };
        if desired.lvm_command_prefix.as_ref().is_some_and(Vec::is_empty) {
            desired.lvm_command_prefix = None;
        }
        for field in self.list(&root, "lvcreate-option-classes") {
            self.remark_unknown(&field, &OPTION_CLASS);
            let options = field.get("options").map(|options| self.texts(&options)).unwrap_or_default();
            match self.text(&field, "name").filter(|name| !name.is_empty()) {
                Some(name) => drop(desired.option_classes.insert(name, options)),
                None => self.remark(&field, "has no effect without a name: give it one".into()),
            }
        }
        self.classes(&root, &mut desired);
        desired
    }

    fn classes(&mut self, root: &Field<'_>, desired: &mut Desired) {
        let fields = self.list(root, "device-classes");
        let is_empty = |field: Field<'_>| matches!(&field.node.value, Value::List(items) if items.is_empty());
        if root.get("device-classes").is_none_or(is_empty) {
            let field = Field { name: "device-classes".into(), ..root.clone() };
            self.wrong(&field, "there is no device class: write at least one".into());
        }
        let mut taken = Taken::default();
        for field in fields {
            self.remark_unknown(&field, &CLASS);
            desired.classes.extend(self.class(&field, &mut taken));
        }
    }

    fn class_name(&mut self, class: &Field<'_>) -> Option<String> {
        let field = child(class, "name");
        let Some(name) = self.text(class, "name").filter(|name| !name.is_empty()) else {
            self.wrong(&field, "is missing: give the class a name".into());
            return None;
        };
        let inner = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
        let ends = name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.ends_with(|last: char| last.is_ascii_alphanumeric());
        if name.len() > 63 || !ends || !name.chars().all(inner) {
            let rule =
                "use at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends";
            self.wrong(&field, format!("{name:?} is no name for a class: {rule}"));
            return None;
        }
        Some(name)
    }

    /// All of a class is read, and compared with the others, before anything of it that is missing makes it none.
    fn class(&mut self, field: &Field<'_>, taken: &mut Taken) -> Option<DeviceClass> {
        let name = self.class_name(field);
        let group = self.name(field, "volume-group", "name the volume group", VgName::parse);
        let kind = self.kind(field);
        let default = self.flag(field, "default");
        let spare = self.number(field, "spare-gb").unwrap_or(SPARE_GIB);
        let stripe = self.number(field, "stripe").unwrap_or_default();
        let stripe_size = self.text(field, "stripe-size").filter(|size| !size.is_empty());
        if let Some(size) = &stripe_size
            && !is_stripe_size(size)
        {
            let problem = format!("{size:?} is no size: write digits and at most one of k m g t p e b s");
            self.wrong(&child(field, "stripe-size"), problem);
        }
        let options = field.get("lvcreate-options").map(|options| self.texts(&options)).unwrap_or_default();
        if matches!(kind, Some(ClassKind::Thin { .. })) {
            self.remark_without_effect(field);
        }
        if let Some(name) = &name {
            self.take_name(field, name, taken);
        }
        if let (Some(group), Some(kind)) = (&group, &kind) {
            self.take_place(field, (group.clone(), kind.pool().cloned()), taken);
        }
        if default {
            self.take_default(field, name.as_ref().unwrap_or(&field.name), taken);
        }
        Some(DeviceClass {
            name: name?,
            group: group?,
            default,
            spare: Bytes(spare.saturating_mul(1 << 30)),
            kind: kind?,
            stripe,
            stripe_size,
            options,
        })
    }

    fn take_name(&mut self, class: &Field<'_>, name: &str, taken: &mut Taken) {
        if !taken.names.insert(name.to_owned()) {
            let problem = format!("{name:?} is the name of another class too: take another");
            self.wrong(&child(class, "name"), problem);
        }
    }

    fn take_place(&mut self, class: &Field<'_>, place: (VgName, Option<LvName>), taken: &mut Taken) {
        let told = match &place {
            (group, Some(pool)) => format!("thin pool {group}/{pool}"),
            (group, None) => format!("volume group {group} (thick)"),
        };
        if !taken.places.insert(place) {
            let problem = format!("the {told} belongs to another class already: remove one of them");
            self.wrong(&child(class, "volume-group"), problem);
        }
    }

    fn take_default(&mut self, class: &Field<'_>, name: &str, taken: &mut Taken) {
        if let Some(other) = taken.default.replace(name.to_owned()) {
            let problem = format!("{other:?} is the default already: keep it for one of them");
            self.wrong(&child(class, "default"), problem);
        }
    }

    fn kind(&mut self, class: &Field<'_>) -> Option<ClassKind> {
        match self.text(class, "type").as_deref() {
            None | Some("" | "thick") => Some(ClassKind::Thick),
            Some("thin") => self.thin(class),
            Some(other) => {
                self.wrong(&child(class, "type"), format!("{other:?} is no type: write thick or thin"));
                None
            }
        }
    }

    fn thin(&mut self, class: &Field<'_>) -> Option<ClassKind> {
        let Some(pool) = class.get("thin-pool") else {
            self.wrong(
                &child(class, "thin-pool"),
                "is missing: a thin class needs the pool's name and ratio".into(),
            );
            return None;
        };
        self.remark_unknown(&pool, &POOL);
        let name = self.name(&pool, "name", "name the thin pool", LvName::parse);
        let field = child(&pool, "overprovision-ratio");
        // A wrong one does not hide that the pool is another class's.
        let mut overprovision_ratio = LEAST_RATIO;
        match self.text(&pool, "overprovision-ratio").map(|text| text.parse::<f64>()) {
            Some(Ok(ratio)) if ratio >= LEAST_RATIO && ratio.is_finite() => overprovision_ratio = ratio,
            Some(_) => {
                let problem =
                    format!("{} is too small or no number: write 1.0 or more", field.node.describe());
                self.wrong(&field, problem);
            }
            None => self.wrong(&field, "is missing: write 1.0 or more".into()),
        }
        Some(ClassKind::Thin { pool: name?, overprovision_ratio })
    }

    fn name<T>(
        &mut self,
        parent: &Field<'_>,
        key: &str,
        remedy: &str,
        parse: impl Fn(&str) -> Result<T, NameError>,
    ) -> Option<T> {
        let field = child(parent, key);
        let Some(text) = self.text(parent, key).filter(|text| !text.is_empty()) else {
            self.wrong(&field, format!("is missing: {remedy}"));
            return None;
        };
        match parse(&text) {
            Ok(name) => Some(name),
            Err(error) => {
                self.wrong(&field, format!("{text:?} is refused by LVM: {error}"));
                None
            }
        }
    }

    fn list<'a>(&mut self, parent: &Field<'a>, key: &str) -> Vec<Field<'a>> {
        let Some(field) = parent.get(key) else { return Vec::new() };
        let Value::List(items) = &field.node.value else {
            self.wrong(&field, format!("is {}: write a list", field.node.describe()));
            return Vec::new();
        };
        let item = |(position, node)| Field { node, name: format!("{}[{position}]", field.name) };
        let items: Vec<Field<'a>> = items.iter().enumerate().map(item).collect();
        let (maps, others): (Vec<_>, Vec<_>) =
            items.into_iter().partition(|item| matches!(item.node.value, Value::Map(_)));
        for other in others {
            self.wrong(&other, format!("is {}: write a map", other.node.describe()));
        }
        maps
    }

    fn texts(&mut self, field: &Field<'_>) -> Vec<String> {
        let Value::List(items) = &field.node.value else {
            self.wrong(field, format!("is {}: write a list of words", field.node.describe()));
            return Vec::new();
        };
        let mut texts = Vec::new();
        for (position, node) in items.iter().enumerate() {
            match scalar(node) {
                Some(text) => texts.push(text),
                None => {
                    let item = Field { node, name: format!("{}[{position}]", field.name) };
                    self.wrong(&item, format!("is {}: write a word", node.describe()));
                }
            }
        }
        texts
    }

    fn text(&mut self, parent: &Field<'_>, key: &str) -> Option<String> {
        let field = parent.get(key)?;
        let text = scalar(field.node);
        if text.is_none() {
            self.wrong(&field, format!("is {}: write a word", field.node.describe()));
        }
        text
    }

    fn number(&mut self, parent: &Field<'_>, key: &str) -> Option<u64> {
        let field = parent.get(key)?;
        let number = scalar(field.node).and_then(|text| text.parse().ok());
        if number.is_none() {
            self.wrong(&field, format!("{} is no whole number: write one from 0", field.node.describe()));
        }
        number
    }

    fn flag(&mut self, parent: &Field<'_>, key: &str) -> bool {
        let Some(field) = parent.get(key) else { return false };
        match scalar(field.node).as_deref() {
            Some("true") => true,
            Some("false") => false,
            _ => {
                self.wrong(&field, format!("is {}: write true or false", field.node.describe()));
                false
            }
        }
    }

    fn remark_unknown(&mut self, field: &Field<'_>, known: &[&str]) {
        let Value::Map(entries) = &field.node.value else { return };
        for (key, node) in entries {
            if !known.iter().any(|known| known.eq_ignore_ascii_case(key)) {
                let name = if field.name.is_empty() { key.clone() } else { format!("{}.{key}", field.name) };
                let problem =
                    format!("is unknown and has no effect: remove it, or write one of {}", known.join(", "));
                self.remarks.push(Mistake { line: node.line, field: name, problem });
            }
        }
    }

    /// Thin volumes lie in their pool as it is.
    fn remark_without_effect(&mut self, class: &Field<'_>) {
        for key in ["stripe", "stripe-size", "lvcreate-options"] {
            let is_nothing = |node: &Node| match &node.value {
                Value::List(items) => items.is_empty(),
                Value::Null => true,
                Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::Map(_) => {
                    scalar(node).is_some_and(|text| text.is_empty() || text == "0")
                }
            };
            if let Some(field) = class.get(key).filter(|field| !is_nothing(field.node)) {
                let problem =
                    "has no effect, for volumes of a thin class lie in their pool as it is: remove it";
                self.remark(&field, problem.into());
            }
        }
    }

    fn remark(&mut self, field: &Field<'_>, problem: String) {
        self.remarks.push(Mistake { line: field.node.line, field: field.name.clone(), problem });
    }

    fn wrong(&mut self, field: &Field<'_>, problem: String) {
        self.mistakes.push(Mistake { line: field.node.line, field: field.name.clone(), problem });
    }
}

/// The field, or its place if it is not there.
fn child<'a>(parent: &Field<'a>, key: &str) -> Field<'a> {
    parent.get(key).unwrap_or_else(|| Field { node: parent.node, name: format!("{}.{key}", parent.name) })
}

/// Numbers and flags are taken for words where words are wanted: so does TopoLVM.
fn scalar(node: &Node) -> Option<String> {
    match &node.value {
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(text) | Value::Text(text) => Some(text.clone()),
        Value::Null | Value::List(_) | Value::Map(_) => None,
    }
}

fn is_stripe_size(text: &str) -> bool {
    let digits = text.trim_end_matches(|last: char| "kmgtpebs".contains(last.to_ascii_lowercase()));
    text.len() - digits.len() <= 1 && digits.chars().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = "\
socket-name: /run/topolvm/lvmd.sock
device-classes:
  - name: ssd
    volume-group: ssd-vg
    default: true
    spare-gb: 0
  - name: striped
    volume-group: multi
    stripe: 2
    stripe-size: 64
    lvcreate-options: [--type=raid1, -m1]
  - NAME: thin
    volume-group: multi
    type: thin
    surprise: 1
    thin-pool:
      name: pool0
      overprovision-ratio: 5
lvcreate-option-classes:
  - name: mirror
    options: [--type=raid1]
";

    #[test]
    fn every_field_of_topolvm_is_read() {
        let Read { desired, remarks } = read(EXAMPLE).unwrap();
        assert_eq!(desired.socket_name.as_deref(), Some("/run/topolvm/lvmd.sock"));
        assert_eq!(desired.class("").unwrap().name, "ssd");
        assert_eq!(desired.class("ssd").unwrap().spare, Bytes::ZERO);
        let striped = desired.class("striped").unwrap();
        assert_eq!((striped.stripe, striped.stripe_size.as_deref()), (2, Some("64")));
        assert_eq!(striped.options, ["--type=raid1", "-m1"]);
        assert_eq!(striped.spare, Bytes::gib(10));
        let ratio = ClassKind::Thin { pool: LvName::parse("pool0").unwrap(), overprovision_ratio: 5.0 };
        assert_eq!(desired.class("thin").unwrap().kind, ratio);
        assert_eq!(desired.option_classes["mirror"], ["--type=raid1"]);
        assert_eq!(remarks.len(), 1);
        assert_eq!((remarks[0].line, remarks[0].field.as_str()), (15, "device-classes[2].surprise"));
    }

    #[test]
    fn all_mistakes_are_told_at_once_with_line_field_and_remedy() {
        let text = "\
device-classes:
  - name: -bad
    volume-group: vg
  - name: a
    volume-group: 'my vg'
    stripe-size: 64x
  - name: b
    type: thin
    volume-group: vg
  - name: b
    type: thin
    volume-group: vg
    thin-pool: {name: p, overprovision-ratio: 0.5}
  - name: c
    volume-group: other
    default: perhaps
    spare-gb: -1
";
        let mistakes: Vec<String> = read(text).unwrap_err().iter().map(ToString::to_string).collect();
        let begins = |begin: &str| mistakes.iter().any(|mistake| mistake.starts_with(begin));
        for begin in [
            "line 2: device-classes[0].name: \"-bad\" is no name for a class: use",
            "line 5: device-classes[1].volume-group: \"my vg\" is refused by LVM: a volume group's name must not contain ' '",
            "line 6: device-classes[1].stripe-size: \"64x\" is no size: write digits",
            "line 7: device-classes[2].thin-pool: is missing: a thin class needs",
            "line 10: device-classes[3].name: \"b\" is the name of another class too",
            "line 13: device-classes[3].thin-pool.overprovision-ratio: 0.5 is too small",
            "line 16: device-classes[4].default: is \"perhaps\": write true or false",
            "line 17: device-classes[4].spare-gb: -1 is no whole number",
        ] {
            assert!(begins(begin), "{begin}\n{mistakes:#?}");
        }
        assert_eq!(mistakes.len(), 8, "{mistakes:#?}");
    }

    #[test]
    fn no_mistake_in_a_class_hides_another_of_it() {
        let told = |text: &str| -> Vec<String> {
            let mistakes = read(text).unwrap_err();
            mistakes.iter().map(|mistake| format!("{}: {}", mistake.field, mistake.problem)).collect()
        };
        for (text, begins) in [
            (
                "device-classes: [{name: a, default: perhaps, spare-gb: x, stripe: x, stripe-size: x, lvcreate-options: 5}]",
                &[
                    "device-classes[0].volume-group: is missing",
                    "device-classes[0].default: is \"perhaps\"",
                    "device-classes[0].spare-gb: \"x\" is no whole number",
                    "device-classes[0].stripe: \"x\" is no whole number",
                    "device-classes[0].stripe-size: \"x\" is no size",
                    "device-classes[0].lvcreate-options: is 5: write a list",
                ][..],
            ),
            (
                "device-classes: [{type: fat, default: perhaps, stripe: x, lvcreate-options: [[]]}]",
                &[
                    "device-classes[0].name: is missing",
                    "device-classes[0].volume-group: is missing",
                    "device-classes[0].type: \"fat\" is no type",
                    "device-classes[0].default: is \"perhaps\"",
                    "device-classes[0].stripe: \"x\" is no whole number",
                    "device-classes[0].lvcreate-options[0]: is a list: write a word",
                ],
            ),
            (
                "device-classes: [{name: a, volume-group: v, default: true, stripe: x}, \
                 {name: a, volume-group: v, default: true, stripe: x}, {name: -x, type: fat, default: true}]",
                &[
                    "device-classes[0].stripe: ",
                    "device-classes[1].stripe: ",
                    "device-classes[1].name: \"a\" is the name of another class too",
                    "device-classes[1].volume-group: the volume group v (thick) belongs to another class",
                    "device-classes[1].default: \"a\" is the default already",
                    "device-classes[2].name: \"-x\" is no name",
                    "device-classes[2].volume-group: is missing",
                    "device-classes[2].type: \"fat\" is no type",
                    "device-classes[2].default: \"a\" is the default already",
                ],
            ),
            (
                "device-classes: [{name: a, volume-group: v, type: thin, thin-pool: {name: p, overprovision-ratio: 0}}, \
                 {name: b, volume-group: v, type: thin, thin-pool: {name: p}}]",
                &[
                    "device-classes[0].thin-pool.overprovision-ratio: 0 is too small",
                    "device-classes[1].thin-pool.overprovision-ratio: is missing",
                    "device-classes[1].volume-group: the thin pool v/p belongs to another class",
                ],
            ),
            (
                "{socket-name: [], device-classes: []}",
                &["socket-name: is a list", "device-classes: there is no device class"],
            ),
            ("device-classes: 5", &["device-classes: is 5: write a list"]),
            ("device-classes: [5]", &["device-classes[0]: is 5: write a map"]),
        ] {
            let told = told(text);
            for begin in begins {
                assert!(told.iter().any(|mistake| mistake.starts_with(begin)), "{begin}\n{told:#?}");
            }
            assert_eq!(told.len(), begins.len(), "{told:#?}");
        }
    }

    #[test]
    fn one_place_belongs_to_one_class_but_thick_and_thin_may_share_a_group() {
        let shared = "device-classes: [{name: a, volume-group: v}, {name: b, volume-group: v, type: thin, \
                      thin-pool: {name: p, overprovision-ratio: 1}}]";
        assert_eq!(read(shared).unwrap().desired.classes.len(), 2);
        let twice = "device-classes: [{name: a, volume-group: v}, {name: b, volume-group: v}]";
        assert!(read(twice).unwrap_err()[0].problem.contains("belongs to another class"));
        let defaults = "device-classes: [{name: a, volume-group: v, default: true}, \
                        {name: b, volume-group: w, default: true}]";
        assert!(read(defaults).unwrap_err()[0].problem.contains("\"a\" is the default already"));
    }

    #[test]
    fn nothing_is_no_configuration_and_null_leaves_defaults() {
        for text in ["", "{}", "device-classes:", "device-classes: []"] {
            assert!(read(text).unwrap_err()[0].problem.contains("no device class"), "{text:?}");
        }
        let null = "device-classes: [{name: a, volume-group: v, spare-gb: null, default: null}]";
        assert_eq!(read(null).unwrap().desired.classes[0].spare, Bytes::gib(10));
    }

    #[test]
    fn what_has_no_effect_is_remarked_and_keeps_nobody_from_the_rest() {
        let text = "\
device-classes:
  - name: a
    volume-group: vg
    stripe: 2
  - name: b
    type: thin
    volume-group: vg
    thin-pool: {name: p, overprovision-ratio: 1}
    stripe: 2
    stripe-size: 64k
    lvcreate-options: [-m1]
  - {name: c, type: thin, volume-group: vg, thin-pool: {name: q, overprovision-ratio: 1}, stripe: 0, lvcreate-options: []}
lvcreate-option-classes:
  - options: [-m1]
  - {name: '', options: [-m1]}
  - {name: mirror, options: [-m1]}
";
        let Read { desired, remarks } = read(text).unwrap();
        assert_eq!((desired.classes.len(), desired.option_classes.len()), (3, 1));
        let remarks: Vec<(u64, &str)> =
            remarks.iter().map(|remark| (remark.line, remark.field.as_str())).collect();
        let expected = [
            (14, "lvcreate-option-classes[0]"),
            (15, "lvcreate-option-classes[1]"),
            (9, "device-classes[1].stripe"),
            (10, "device-classes[1].stripe-size"),
            (11, "device-classes[1].lvcreate-options"),
        ];
        assert_eq!(remarks, expected);
    }

    #[test]
    fn what_is_no_yaml_has_a_line() {
        let mistakes = read("device-classes:\n  - name: [a\n").unwrap_err();
        assert!(mistakes[0].line >= 2 && mistakes[0].problem.starts_with("this is no YAML"), "{mistakes:?}");
    }

    #[test]
    fn stripe_sizes_are_those_that_topolvm_takes() {
        for size in ["", "64", "64k", "1M", "k", "8S"] {
            assert!(is_stripe_size(size), "{size:?}");
        }
        for size in ["64kk", "x", "6 4", "-1", "1.5m", "4x"] {
            assert!(!is_stripe_size(size), "{size:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,120}") {
            let _ = read(&text);
        }

        #[test]
        fn no_damage_to_a_good_file_makes_it_panic(place in 0usize..500, byte in 0u8..128) {
            let mut text = EXAMPLE.as_bytes().to_vec();
            let place = place % text.len();
            text[place] = byte;
            let _ = read(&String::from_utf8_lossy(&text));
        }
    }
}
