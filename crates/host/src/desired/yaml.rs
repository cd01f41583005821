//! YAML as a tree whose values know their lines.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// A value and where it begins.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) line: u64,
    pub(super) value: Value,
}

impl Node {
    /// The value of a key of a map, whatever its case: so does TopoLVM read. The last of several counts.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        let Value::Map(entries) = &self.value else { return None };
        let found = entries.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case(key));
        found.map(|(_, node)| node).filter(|node| node.value != Value::Null)
    }

    /// What it is, for people.
    pub(super) fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Number(value) => value.clone(),
            Value::Text(value) => format!("{value:?}"),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }
}

/// Reads a text; the error has its line, if it is known.
pub(super) fn parse(text: &str) -> Result<Node, (u64, String)> {
    let mut options = serde_saphyr::Options::default();
    options.duplicate_keys = serde_saphyr::DuplicateKeyPolicy::LastWins;
    options.with_snippet = false;
    match serde_saphyr::from_str_with_options::<Option<Spanned<Value>>>(text, options) {
        Ok(Some(root)) => Ok(node(root)),
        Ok(None) => Ok(Node { line: 1, value: Value::Null }),
        Err(error) => {
            let line = error.location().map_or(1, |location| location.line());
            let message = error.to_string();
            Err((line, message.lines().next().unwrap_or_default().to_owned()))
        }
    }
}

fn node(spanned: Spanned<Value>) -> Node {
    Node { line: spanned.referenced.line(), value: spanned.value }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(Any)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Value>>()? {
            list.push(node(item));
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some((key, value)) = entries.next_entry::<String, Spanned<Value>>()? {
            map.push((key, node(value)));
        }
        Ok(Value::Map(map))
    }
}
