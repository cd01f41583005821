//! Names of what has to be looked at. Each is looked at by one at a time, and again if something happened meanwhile;
//! what failed is looked at again after a while.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How a look ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is left to do until something happens.
    Done,
    /// To be looked at again after this long.
    After(Duration),
    /// To be looked at again later, and later still each time.
    Failed,
}

/// How long is waited after failures.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// After the first.
    pub first: Duration,
    /// At the most.
    pub longest: Duration,
}

impl Patience {
    fn after(self, failures: u32) -> Duration {
        let factor = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

/// What was refused, and is not asked for again for a while, whatever happens meanwhile.
pub struct Refusals<K> {
    patience: Patience,
    until: Mutex<BTreeMap<K, (u32, Instant)>>,
}

impl<K: Ord + Clone> Refusals<K> {
    /// Nothing yet.
    pub fn new(patience: Patience) -> Refusals<K> {
        Refusals { patience, until: Mutex::default() }
    }

    /// Something was refused, perhaps not for the first time. What nobody has asked for again long since is forgotten.
    pub fn refuse(&self, key: &K) {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.retain(|_, (_, due)| due.elapsed() < self.patience.longest);
        let (times, due) = until.entry(key.clone()).or_insert((0, Instant::now()));
        *times = times.saturating_add(1);
        *due = Instant::now() + self.patience.after(*times);
    }

    /// How long it is still not asked for.
    pub fn rest(&self, key: &K) -> Option<Duration> {
        let until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = until.get(key)?.1.checked_duration_since(Instant::now())?;
        (!rest.is_zero()).then_some(rest)
    }

    /// It was granted, or nobody wants it any more.
    pub fn forget(&self, key: &K) {
        self.until.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// What has to be looked at.
pub struct Work<K> {
    name: &'static str,
    patience: Patience,
    state: Mutex<State<K>>,
    changed: Notify,
}

struct State<K> {
    ready: VecDeque<K>,
    /// What is in `ready`.
    waiting: BTreeSet<K>,
    later: BTreeSet<(Instant, K)>,
    /// When each of those in `later` is due: one time each.
    due: BTreeMap<K, Instant>,
    running: BTreeSet<K>,
    /// Of what is running: something has happened since.
    again: BTreeSet<K>,
    failures: BTreeMap<K, u32>,
    looks: u64,
    failed: u64,
}

/// How much there is to do, and how it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Whose.
    pub name: &'static str,
    /// How many wait to be looked at, now or later.
    pub waiting: usize,
    /// How many looks there were.
    pub looks: u64,
    /// How many of them failed.
    pub failed: u64,
}

/// Something that knows how much there is to do, whatever it is.
pub trait Busy: Send + Sync {
    /// How much, and how it goes.
    fn figures(&self) -> Figures;
}

impl<K: Ord + Clone + Debug + Send + Sync + 'static> Busy for Work<K> {
    fn figures(&self) -> Figures {
        let state = self.state();
        let waiting = state.ready.len() + state.later.len();
        Figures { name: self.name, waiting, looks: state.looks, failed: state.failed }
    }
}

/// Who looks at what has to be looked at.
pub trait Looks<K>: Send + Sync + 'static {
    /// Looks at one, and does what comes next.
    fn look(&self, key: &K) -> impl Future<Output = Outcome> + Send;
}

impl<K: Ord + Clone + Debug + Send + Sync + 'static> Work<K> {
    /// Lets somebody look, at so many at a time, for ever.
    pub async fn looked_at_by<L: Looks<K>>(self: Arc<Self>, who: Arc<L>, at_a_time: usize) {
        let looking = move |key: K| {
            let who = Arc::clone(&who);
            async move { who.look(&key).await }
        };
        self.run(at_a_time, looking).await;
    }

    /// Nothing to do yet. The name is for the log and for figures.
    pub fn new(name: &'static str, patience: Patience) -> Arc<Work<K>> {
        let state = State {
            ready: VecDeque::new(),
            waiting: BTreeSet::new(),
            later: BTreeSet::new(),
            due: BTreeMap::new(),
            running: BTreeSet::new(),
            again: BTreeSet::new(),
            failures: BTreeMap::new(),
            looks: 0,
            failed: 0,
        };
        Arc::new(Work { name, patience, state: Mutex::new(state), changed: Notify::new() })
    }

    /// To be looked at, as soon as somebody has time.
    pub fn add(&self, key: K) {
        let mut state = self.state();
        if state.running.contains(&key) {
            state.again.insert(key);
        } else if state.waiting.insert(key.clone()) {
            state.ready.push_back(key);
            self.changed.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what waits, for whoever is not to act any more.
    pub fn clear(&self) {
        let mut state = self.state();
        state.ready.clear();
        state.waiting.clear();
        state.later.clear();
        state.due.clear();
        state.failures.clear();
    }

    /// Takes what is due, or says when something will be.
    fn take(&self) -> Result<K, Option<Instant>> {
        let mut state = self.state();
        while state.later.first().is_some_and(|(due, _)| *due <= Instant::now())
            && let Some((_, key)) = state.later.pop_first()
        {
            state.due.remove(&key);
            if state.running.contains(&key) {
                state.again.insert(key);
            } else if state.waiting.insert(key.clone()) {
                state.ready.push_back(key);
            }
        }
        let Some(key) = state.ready.pop_front() else {
            return Err(state.later.first().map(|(due, _)| *due));
        };
        state.waiting.remove(&key);
        state.running.insert(key.clone());
        state.looks += 1;
        Ok(key)
    }

    fn finish(&self, key: K, outcome: Outcome) {
        let mut state = self.state();
        state.running.remove(&key);
        let again = state.again.remove(&key);
        let delay = match outcome {
            Outcome::Done => {
                state.failures.remove(&key);
                None
            }
            Outcome::After(delay) => {
                state.failures.remove(&key);
                Some(delay)
            }
            Outcome::Failed => {
                let failures = state.failures.entry(key.clone()).or_default();
                *failures = failures.saturating_add(1);
                let pause = self.patience.after(*failures);
                state.failed += 1;
                Some(pause)
            }
        };
        if again && state.waiting.insert(key.clone()) {
            state.ready.push_back(key.clone());
        }
        if let Some(before) = state.due.remove(&key) {
            state.later.remove(&(before, key.clone()));
        }
        if let Some(delay) = delay {
            let due = Instant::now() + delay;
            state.due.insert(key.clone(), due);
            state.later.insert((due, key));
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Looks at what has to be looked at, so many at a time, until it is dropped.
    pub async fn run<F, Look>(self: Arc<Self>, at_a_time: usize, look: F)
    where
        F: Fn(K) -> Look + Send,
        Look: Future<Output = Outcome> + Send + 'static,
    {
        let mut looks = JoinSet::new();
        loop {
            let due = if looks.len() < at_a_time {
                match self.take() {
                    Ok(key) => {
                        let (work, looking) = (Arc::clone(&self), look(key.clone()));
                        looks.spawn(async move {
                            // Dropped with the task, so that it counts as finished even after a panic.
                            let mut finish = Finish { work, key: Some(key), outcome: Outcome::Failed };
                            finish.outcome = looking.await;
                        });
                        continue;
                    }
                    Err(due) => due,
                }
            } else {
                None
            };
            tokio::select! {
                () = self.changed.notified() => {}
                Some(_) = looks.join_next(), if !looks.is_empty() => {}
                () = until(due) => {}
            }
        }
    }
}

struct Finish<K: Ord + Clone + Debug + Send + Sync + 'static> {
    work: Arc<Work<K>>,
    key: Option<K>,
    outcome: Outcome,
}

impl<K: Ord + Clone + Debug + Send + Sync + 'static> Drop for Finish<K> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.work.finish(key, self.outcome);
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const PATIENCE: Patience = Patience { first: Duration::from_secs(1), longest: Duration::from_secs(8) };

    fn work() -> Arc<Work<&'static str>> {
        Work::new("test", PATIENCE)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_added_twice_is_looked_at_once() {
        let (work, looks) = (work(), Arc::new(AtomicUsize::new(0)));
        work.add("a");
        work.add("a");
        let counted = Arc::clone(&looks);
        let running = tokio::spawn(Arc::clone(&work).run(2, move |_| {
            let looks = Arc::clone(&counted);
            async move {
                looks.fetch_add(1, Ordering::SeqCst);
                Outcome::Done
            }
        }));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(looks.load(Ordering::SeqCst), 1);
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_while_it_is_looked_at_is_looked_at_again_and_never_by_two() {
        let (work, at_once, looks) = (work(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        work.add("a");
        let (counted, running_now) = (Arc::clone(&looks), Arc::clone(&at_once));
        let running = tokio::spawn(Arc::clone(&work).run(4, move |_| {
            let (looks, at_once) = (Arc::clone(&counted), Arc::clone(&running_now));
            async move {
                assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0);
                tokio::time::sleep(Duration::from_secs(5)).await;
                at_once.fetch_sub(1, Ordering::SeqCst);
                looks.fetch_add(1, Ordering::SeqCst);
                Outcome::Done
            }
        }));
        tokio::time::sleep(Duration::from_secs(1)).await;
        work.add("a");
        work.add("a");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(looks.load(Ordering::SeqCst), 2);
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_looked_at_later_and_later_until_it_does_not() {
        let work = work();
        let began = Instant::now();
        let times = Arc::new(Mutex::new(Vec::new()));
        work.add("a");
        let told = Arc::clone(&times);
        let running = tokio::spawn(Arc::clone(&work).run(1, move |_| {
            let times = Arc::clone(&told);
            async move {
                let mut times = times.lock().unwrap();
                times.push(began.elapsed().as_secs());
                if times.len() < 7 { Outcome::Failed } else { Outcome::Done }
            }
        }));
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(*times.lock().unwrap(), [0, 1, 3, 7, 15, 23, 31]);
        assert_eq!(work.figures(), Figures { name: "test", waiting: 0, looks: 7, failed: 6 });
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_again_is_asked_for_later_and_what_is_granted_at_once() {
        let refusals = Refusals::new(PATIENCE);
        assert_eq!(refusals.rest(&"a"), None);
        refusals.refuse(&"a");
        assert_eq!(refusals.rest(&"a"), Some(Duration::from_secs(1)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(refusals.rest(&"a"), None);
        refusals.refuse(&"a");
        assert_eq!(refusals.rest(&"a"), Some(Duration::from_secs(2)));
        refusals.forget(&"a");
        assert_eq!(refusals.rest(&"a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_asks_for_any_more_is_forgotten() {
        let refusals = Refusals::new(PATIENCE);
        refusals.refuse(&"a");
        tokio::time::advance(PATIENCE.longest).await;
        refusals.refuse(&"b");
        assert_eq!(refusals.until.lock().unwrap().len(), 2);
        tokio::time::advance(PATIENCE.longest).await;
        refusals.refuse(&"c");
        assert_eq!(refusals.until.lock().unwrap().keys().collect::<Vec<_>>(), [&"b", &"c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_and_changes_often_is_not_looked_at_more_often_later() {
        let (work, looks) = (work(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&looks);
        let running = tokio::spawn(Arc::clone(&work).run(1, move |_| {
            let looks = Arc::clone(&counted);
            async move {
                looks.fetch_add(1, Ordering::SeqCst);
                Outcome::Failed
            }
        }));
        for _ in 0..100 {
            work.add("a");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let before = looks.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(80)).await;
        let after = looks.load(Ordering::SeqCst) - before;
        assert!(after <= 11, "{after} looks in ten times the longest pause");
        assert_eq!(work.figures().waiting, 1);
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_a_failure_of_its_own_key_only() {
        let (work, looks) = (work(), Arc::new(AtomicUsize::new(0)));
        work.add("bad");
        work.add("good");
        let counted = Arc::clone(&looks);
        let running = tokio::spawn(Arc::clone(&work).run(1, move |key| {
            let looks = Arc::clone(&counted);
            async move {
                assert_eq!(key, "good");
                looks.fetch_add(1, Ordering::SeqCst);
                Outcome::After(Duration::from_secs(10))
            }
        }));
        tokio::time::sleep(Duration::from_secs(35)).await;
        assert_eq!(looks.load(Ordering::SeqCst), 4);
        running.abort();
    }
}
