//! Fields of the file: each is read as what it should be, and whatever is wrong with it is noted.

use super::super::yaml::{Node, Value};
use super::Mistake;
use crate::names::NameError;

/// A node with the name by which people find it.
#[derive(Clone)]
pub(super) struct Field<'a> {
    pub(super) node: &'a Node,
    pub(super) name: String,
}

impl<'a> Field<'a> {
    pub(super) fn get(&self, key: &str) -> Option<Field<'a>> {
        let name = if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) };
        Some(Field { node: self.node.get(key)?, name })
    }
}

/// Reads fields, and notes what it finds.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) mistakes: Vec<Mistake>,
    pub(super) remarks: Vec<Mistake>,
}

impl Reader {
    pub(super) fn name<T>(
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

    pub(super) fn list<'a>(&mut self, parent: &Field<'a>, key: &str) -> Vec<Field<'a>> {
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

    pub(super) fn texts(&mut self, field: &Field<'_>) -> Vec<String> {
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

    pub(super) fn text(&mut self, parent: &Field<'_>, key: &str) -> Option<String> {
        let field = parent.get(key)?;
        let text = scalar(field.node);
        if text.is_none() {
            self.wrong(&field, format!("is {}: write a word", field.node.describe()));
        }
        text
    }

    pub(super) fn number(&mut self, parent: &Field<'_>, key: &str) -> Option<u64> {
        let field = parent.get(key)?;
        let number = scalar(field.node).and_then(|text| text.parse().ok());
        if number.is_none() {
            self.wrong(&field, format!("{} is no whole number: write one from 0", field.node.describe()));
        }
        number
    }

    pub(super) fn flag(&mut self, parent: &Field<'_>, key: &str) -> bool {
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

    pub(super) fn remark_unknown(&mut self, field: &Field<'_>, known: &[&str]) {
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

    pub(super) fn remark(&mut self, field: &Field<'_>, problem: String) {
        self.remarks.push(Mistake { line: field.node.line, field: field.name.clone(), problem });
    }

    pub(super) fn wrong(&mut self, field: &Field<'_>, problem: String) {
        self.mistakes.push(Mistake { line: field.node.line, field: field.name.clone(), problem });
    }
}

/// The field, or its place if it is not there.
pub(super) fn child<'a>(parent: &Field<'a>, key: &str) -> Field<'a> {
    parent.get(key).unwrap_or_else(|| Field { node: parent.node, name: format!("{}.{key}", parent.name) })
}

/// Numbers and flags are taken for words where words are wanted: so does TopoLVM.
pub(super) fn scalar(node: &Node) -> Option<String> {
    match &node.value {
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(text) | Value::Text(text) => Some(text.clone()),
        Value::Null | Value::List(_) | Value::Map(_) => None,
    }
}
