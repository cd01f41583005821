//! `lvmd.yaml`, as TopoLVM has it: the same fields, the same defaults, the same leniency. All mistakes are told at
//! once, each with its line, its field and a remedy.

mod fields;

use std::collections::BTreeSet;
use std::fmt;

use self::fields::{Field, Reader, child, scalar};
use super::yaml::{self, Node, Value};
use super::{ClassKind, Desired, DeviceClass};
use crate::names::{LvName, VgName};
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

/// What the classes that were read have, and no other can have.
#[derive(Default)]
struct Taken {
    names: BTreeSet<String>,
    places: BTreeSet<(VgName, Option<LvName>)>,
    default: Option<String>,
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
}

fn is_stripe_size(text: &str) -> bool {
    let digits = text.trim_end_matches(|last: char| "kmgtpebs".contains(last.to_ascii_lowercase()));
    text.len() - digits.len() <= 1 && digits.chars().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests;
