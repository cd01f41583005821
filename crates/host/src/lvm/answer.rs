//! What an LVM command prints with `report/output_format="json"` and `log/report_command_log=1`.

use std::collections::BTreeMap;

use serde::Deserialize;
use thiserror::Error;

/// The answer of one command.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Answer {
    /// One element per volume group, each with tables of rows.
    #[serde(default)]
    pub report: Vec<Tables>,
    /// What happened, in order.
    #[serde(default)]
    pub log: Vec<LogRow>,
}

/// Tables by name (`vg`, `pv`, `lv`, `seg`); every value is a string.
pub type Tables = BTreeMap<String, Vec<BTreeMap<String, String>>>;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LogRow {
    /// `error`, `warn`, `print` or `status`.
    #[serde(rename = "log_type")]
    pub kind: String,
    /// What it was about: `lv`, `vg`, `pv` or nothing.
    #[serde(rename = "log_object_type", default)]
    pub object: String,
    /// Which.
    #[serde(rename = "log_object_name", default)]
    pub name: String,
    /// The sentence.
    #[serde(rename = "log_message")]
    pub message: String,
    /// The return code; 1 is success.
    #[serde(rename = "log_ret_code", default)]
    pub code: String,
}

/// Not an answer.
#[derive(Debug, Error)]
#[error("lvm2 printed something that is no report: {text}")]
pub struct NotAnAnswer {
    text: String,
    source: serde_json::Error,
}

impl Answer {
    /// Reads what a command printed. Some print a line or two before, and lvm2 up to 2.03.16 leaves backslashes in
    /// messages as they are.
    pub fn parse(printed: &[u8]) -> Result<Answer, NotAnAnswer> {
        let text = String::from_utf8_lossy(printed);
        let Some(begin) = begin(&text) else { return Ok(Answer::default()) };
        let text = &text[begin..];
        serde_json::from_str(text).or_else(|source| {
            let escaped = escape_lone_backslashes(text);
            let again = serde_json::from_str(&escaped).ok();
            again.ok_or_else(|| NotAnAnswer { text: text.chars().take(300).collect(), source })
        })
    }

    /// The sentences of errors, in order.
    pub fn errors(&self) -> impl Iterator<Item = &str> {
        self.log.iter().filter(|row| row.kind == "error").map(|row| row.message.as_str())
    }

    /// The sentences of warnings, in order.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        self.log.iter().filter(|row| row.kind == "warn").map(|row| row.message.as_str())
    }
}

/// Where the report begins: at a line that is an opening brace.
fn begin(text: &str) -> Option<usize> {
    let mut position = 0;
    for line in text.split_inclusive('\n') {
        if line.trim() == "{" {
            return Some(position);
        }
        position += line.len();
    }
    None
}

fn escape_lone_backslashes(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        escaped.push(character);
        if character == '\\' {
            match characters.peek() {
                Some('"' | '\\') => escaped.extend(characters.next()),
                _ => escaped.push('\\'),
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Printed by lvm2 2.03.16.
    const NO_SPACE: &str = r#"  Using default stripesize 64.00 KiB.
  {
      "log": [
          {"log_seq_num":"1", "log_type":"error", "log_context":"processing", "log_object_type":"vg", "log_object_name":"vg", "log_object_id":"cCAuo0-i7dQ-8itU-NG23-Ngzt-HuJt-rEXJ7m", "log_object_group":"", "log_object_group_id":"", "log_message":"Volume group \"vg\" has insufficient free space (505 extents): 5000 required.", "log_errno":"-1", "log_ret_code":"0"},
          {"log_seq_num":"2", "log_type":"status", "log_context":"processing", "log_object_type":"vg", "log_object_name":"vg", "log_object_id":"cCAuo0-i7dQ-8itU-NG23-Ngzt-HuJt-rEXJ7m", "log_object_group":"", "log_object_group_id":"", "log_message":"failure", "log_errno":"-1", "log_ret_code":"5"}
      ]
  }
"#;

    #[test]
    fn errors_are_rows_and_lines_before_the_report_are_passed_over() {
        let answer = Answer::parse(NO_SPACE.as_bytes()).unwrap();
        let errors: Vec<&str> = answer.errors().collect();
        assert_eq!(errors, ["Volume group \"vg\" has insufficient free space (505 extents): 5000 required."]);
        assert_eq!(answer.log[1].code, "5");
    }

    #[test]
    fn backslashes_that_lvm2_did_not_escape_are_read_as_backslashes() {
        let text = NO_SPACE.replace("insufficient", r"EFI\x20insufficient");
        let answer = Answer::parse(text.as_bytes()).unwrap();
        assert!(answer.errors().next().unwrap().contains(r"EFI\x20insufficient"));
    }

    #[test]
    fn a_command_that_prints_no_report_has_an_empty_answer() {
        assert_eq!(Answer::parse(b"").unwrap(), Answer::default());
    }

    #[test]
    fn what_is_cut_off_is_an_error_and_not_an_empty_answer() {
        assert!(Answer::parse(&NO_SPACE.as_bytes()[..200]).is_err());
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in "\\PC{0,200}", cut in 0usize..400) {
            let _ = Answer::parse(text.as_bytes());
            let _ = Answer::parse(&NO_SPACE.as_bytes()[..cut.min(NO_SPACE.len())]);
            let _ = Answer::parse(format!("{{\n{text}").as_bytes());
        }

        #[test]
        fn whatever_is_printed_is_read_as_it_was_meant(before in "\\PC{0,40}", message in "\\PC{0,80}", kind in "[a-z]{1,8}") {
            let row = LogRow { kind, object: "vg".into(), name: "v".into(), message, code: "5".into() };
            let printed = serde_json::json!({ "log": [{
                "log_type": row.kind, "log_object_type": row.object, "log_object_name": row.name,
                "log_message": row.message, "log_ret_code": row.code,
            }] });
            let printed = format!("{before}.\n  {printed:#}\n");
            prop_assert_eq!(Answer::parse(printed.as_bytes()).unwrap().log, [row]);
        }
    }
}
