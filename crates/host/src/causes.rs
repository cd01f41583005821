//! Errors with their causes, in one line.

use std::error::Error;

/// An error with all its causes.
pub fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        // A transparent error repeats its cause.
        if !text.ends_with(&more) {
            text += &format!(": {more}");
        }
        next = source.source();
    }
    text
}
