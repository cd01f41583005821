//! Places for what can take long, so that it does not keep others from theirs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use lvms_host::names::VgName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::AT_ONCE;

/// So many of a volume group may be at what can take hours, or wait for it; the others are for what is done at once.
const LONG_AT_ONCE: usize = AT_ONCE / 4;

/// Places for what can take long, of each volume group its own: one whose disk hangs holds no other up.
#[derive(Default)]
pub struct LongWorks(Mutex<BTreeMap<VgName, Arc<Semaphore>>>);

impl LongWorks {
    pub(super) fn try_take(&self, group: &VgName) -> Option<OwnedSemaphorePermit> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let places = all.entry(group.clone()).or_insert_with(|| Arc::new(Semaphore::new(LONG_AT_ONCE)));
        Arc::clone(places).try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_works_of_one_group_leave_the_places_of_others() {
        let (works, one, other) = (LongWorks::default(), VgName::parse("a"), VgName::parse("b"));
        let (one, other) = (one.unwrap(), other.unwrap());
        let taken: Vec<_> = std::iter::from_fn(|| works.try_take(&one)).collect();
        assert_eq!(taken.len(), LONG_AT_ONCE);
        assert!(works.try_take(&other).is_some());
        drop(taken);
        assert!(works.try_take(&one).is_some());
    }
}
