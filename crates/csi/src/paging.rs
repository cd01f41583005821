//! Lists in pages. A token names the last entry of the page before, so that entries that come and go between two calls
//! shift nothing.

use crate::error::{Error, Kind};

const PREFIX: &str = "after:";

/// A page of sorted entries, and the token for the next one.
pub(crate) fn page<T>(
    entries: Vec<T>,
    id: impl Fn(&T) -> &str,
    most: i32,
    token: &str,
) -> Result<(Vec<T>, String), Error> {
    let most = usize::try_from(most).map_err(|_| Error::invalid("max_entries", "must not be negative"))?;
    let after = match token {
        "" => "",
        token => token.strip_prefix(PREFIX).ok_or_else(|| {
            Error::new(Kind::BadToken, format!("starting_token: {token:?} is none of ours"))
        })?,
    };
    let mut page: Vec<T> =
        entries.into_iter().filter(|entry| after.is_empty() || id(entry) > after).collect();
    page.sort_by(|one, other| id(one).cmp(id(other)));
    if most == 0 || page.len() <= most {
        return Ok((page, String::new()));
    }
    page.truncate(most);
    let token = page.last().map(|last| format!("{PREFIX}{}", id(last))).unwrap_or_default();
    Ok((page, token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&'static str]) -> Vec<&'static str> {
        names.to_vec()
    }

    #[test]
    fn pages_follow_each_other_though_entries_come_and_go() {
        let (first, token) = page(names(&["c", "a", "b", "d"]), |name| name, 2, "").unwrap();
        assert_eq!(first, ["a", "b"]);
        let (second, token) = page(names(&["d", "c"]), |name| name, 2, &token).unwrap();
        assert_eq!((second, token.as_str()), (names(&["c", "d"]), ""));
    }

    #[test]
    fn a_foreign_token_and_a_negative_number_are_refused() {
        assert_eq!(page(names(&["a"]), |name| name, 1, "invalid-token").unwrap_err().kind, Kind::BadToken);
        assert_eq!(page(names(&["a"]), |name| name, -1, "").unwrap_err().kind, Kind::Invalid);
        assert_eq!(page(names(&["a"]), |name| name, 0, "").unwrap().0, ["a"]);
    }
}
