//! A test of several parts, of which each goes on with what those before it have left. Each is listed, and counted, as a
//! test of its own.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Which parts of a test have passed so far.
pub(super) struct Parts {
    since: RefCell<Instant>,
    passed: RefCell<Vec<(&'static str, Duration)>>,
}

/// How a part went.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) name: &'static str,
    pub(super) time: Duration,
    pub(super) failure: Option<String>,
}

impl Parts {
    /// None.
    pub(super) fn new() -> Parts {
        Parts { since: RefCell::new(Instant::now()), passed: RefCell::default() }
    }

    /// The part whose name begins with this has passed, and the next one begins.
    pub(super) fn pass(&self, number: &'static str) {
        let took = self.since.replace(Instant::now()).elapsed();
        self.passed.borrow_mut().push((number, took));
    }

    /// How each went, when the whole has ended. What was not reached has failed, and what goes wrong after all parts
    /// is the last one's.
    pub(super) fn end(self, names: &[&'static str], failure: Option<String>) -> Vec<Ended> {
        let (passed, rest) = (self.passed.into_inner(), self.since.into_inner().elapsed());
        let is =
            |name: &str, number: &str| name.strip_prefix(number).is_some_and(|rest| rest.starts_with('_'));
        let time = |name: &str| passed.iter().find(|(number, _)| is(name, number)).map(|(_, took)| *took);
        let failed = names.iter().find(|name| time(name).is_none()).or(names.last());
        let how = |&name: &&'static str| {
            let reached = time(name);
            let failure = match (&failure, reached) {
                (Some(failure), _) if Some(&name) == failed => Some(failure.clone()),
                (_, Some(_)) => None,
                (Some(_), None) => failed.map(|failed| format!("it was not reached: {failed} failed")),
                (None, None) => Some("the test has ended without it".to_owned()),
            };
            Ended {
                name,
                time: reached.unwrap_or(if Some(&name) == failed { rest } else { Duration::ZERO }),
                failure,
            }
        };
        names.iter().map(how).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["t01_one", "t02_two", "t10_three"];

    fn failures(passed: &[&'static str], failure: Option<&str>) -> [Option<String>; 3] {
        let parts = Parts::new();
        for number in passed {
            parts.pass(number);
        }
        let ended = parts.end(&NAMES, failure.map(str::to_owned));
        assert_eq!(ended.iter().map(|part| part.name).collect::<Vec<_>>(), NAMES);
        ended.into_iter().map(|part| part.failure).collect::<Vec<_>>().try_into().unwrap()
    }

    #[test]
    fn each_part_that_was_reached_passes() {
        assert_eq!(failures(&["t01", "t02", "t10"], None), [None, None, None]);
    }

    #[test]
    fn a_part_after_a_failed_one_has_failed_too() {
        let [one, two, three] = failures(&["t01"], Some("no room"));
        assert_eq!((one, two.as_deref()), (None, Some("no room")));
        assert_eq!(three.as_deref(), Some("it was not reached: t02_two failed"));
    }

    #[test]
    fn what_goes_wrong_after_all_parts_is_the_last_ones() {
        let [one, two, three] = failures(&["t01", "t02", "t10"], Some("space is missing"));
        assert_eq!((one, two, three.as_deref()), (None, None, Some("space is missing")));
    }

    #[test]
    fn a_part_that_the_test_never_tells_of_has_failed() {
        // A number is a whole one: t1 is not t10.
        let [_, two, three] = failures(&["t01", "t1"], None);
        assert!(two.is_some() && three.is_some());
    }
}
