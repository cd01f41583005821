//! What a benchmark's program has measured, one line of its output each.

use serde::{Deserialize, Serialize};

/// What such a line begins with; all others are for people.
const BEGIN: &str = "figure: ";

/// One measurement: samples, of which the median counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// In what.
    pub unit: String,
    /// Ours.
    pub ours: Vec<f64>,
    /// The other side's, taken in turns with ours; none if there is no other side.
    #[serde(default)]
    pub against: Vec<f64>,
}

impl Figure {
    /// As a line of output.
    pub fn line(&self) -> String {
        format!("{BEGIN}{}", serde_json::to_string(self).unwrap_or_default())
    }

    /// Those in an output.
    pub fn all(output: &str) -> Result<Vec<Figure>, serde_json::Error> {
        output.lines().filter_map(|line| line.strip_prefix(BEGIN)).map(serde_json::from_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_among_words_for_people() {
        let figure =
            Figure { name: "create".into(), unit: "ms".into(), ours: vec![1.5, 2.0], against: vec![3.0] };
        let output = format!("now: create\n{}\ndone\n", figure.line());
        assert_eq!(Figure::all(&output).unwrap(), [figure]);
        assert!(Figure::all("figure: {").is_err());
    }
}
