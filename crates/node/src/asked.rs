//! Questions that may never be answered, because a disk is dead. Each has a thread of its own, and is asked once at a
//! time: whoever asks the same meanwhile waits for the same answer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lvms_host::names::{VgName, VolumePath};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout_at};

/// So many questions about one volume group may wait for their answers. A group whose disks are dead costs no more
/// threads, and others have their own.
const MOST: usize = 32;

/// About which volume, at which path.
pub(crate) type Question = (VolumePath, PathBuf);

/// There is no answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoAnswer;

/// The questions that wait for their answers.
pub(crate) struct Asked<T> {
    open: Mutex<BTreeMap<Question, Open<T>>>,
    places: Mutex<BTreeMap<VgName, Arc<Semaphore>>>,
}

struct Open<T> {
    since: Instant,
    answer: watch::Receiver<Option<T>>,
}

impl<T> Clone for Open<T> {
    fn clone(&self) -> Open<T> {
        Open { since: self.since, answer: self.answer.clone() }
    }
}

impl<T> Default for Asked<T> {
    fn default() -> Asked<T> {
        Asked { open: Mutex::default(), places: Mutex::default() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes a question, though who answers it panics.
struct Answering<T> {
    asked: Arc<Asked<T>>,
    question: Question,
    _place: OwnedSemaphorePermit,
}

impl<T> Drop for Answering<T> {
    fn drop(&mut self) {
        lock(&self.asked.open).remove(&self.question);
    }
}

impl<T: Clone + Send + Sync + 'static> Asked<T> {
    /// The answer of `act`, if there is one within the limit since this was asked first.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        question: Question,
        limit: Duration,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let waits = lock(&self.open).get(&question).cloned();
        let mut open = match waits {
            Some(open) => open,
            None => {
                let place = self.place(&question.0.group, limit).await?;
                self.begin(question, place, act)?
            }
        };
        let answer = timeout_at(open.since + limit, open.answer.wait_for(Option::is_some)).await;
        answer.ok().and_then(Result::ok).and_then(|answer| answer.clone()).ok_or(NoAnswer)
    }

    /// A place for one more question about a group. Nobody waits for those whose time is over.
    async fn place(&self, group: &VgName, limit: Duration) -> Result<OwnedSemaphorePermit, NoAnswer> {
        let places =
            lock(&self.places).entry(group.clone()).or_insert_with(|| Arc::new(Semaphore::new(MOST))).clone();
        let is_over = |(question, open): &(&Question, &Open<T>)| {
            question.0.group == *group && open.since.elapsed() >= limit
        };
        if lock(&self.open).iter().filter(is_over).count() >= MOST {
            return Err(NoAnswer);
        }
        let place = timeout_at(Instant::now() + limit, places.acquire_owned()).await;
        place.ok().and_then(Result::ok).ok_or(NoAnswer)
    }

    fn begin(
        self: &Arc<Self>,
        question: Question,
        place: OwnedSemaphorePermit,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Open<T>, NoAnswer> {
        let (tell, answer) = watch::channel(None);
        let open = Open { since: Instant::now(), answer };
        {
            let mut all = lock(&self.open);
            // Somebody may have asked while a place was waited for.
            if let Some(open) = all.get(&question) {
                return Ok(open.clone());
            }
            all.insert(question.clone(), open.clone());
        }
        let answering = Answering { asked: Arc::clone(self), question, _place: place };
        let span = tracing::Span::current();
        let thread = std::thread::Builder::new().name("asks".into()).spawn(move || {
            let answer = span.in_scope(act);
            drop(answering);
            tell.send_replace(Some(answer));
        });
        if let Err(error) = thread {
            tracing::warn!(%error, "there is no thread to ask with");
            return Err(NoAnswer);
        }
        Ok(open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_host::names::LvName;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(3600);

    fn question(group: &str, path: &str) -> Question {
        let (group, volume) = (VgName::parse(group).unwrap(), LvName::parse("v").unwrap());
        (VolumePath { group, volume }, PathBuf::from(path))
    }

    /// Something that does not answer until it is let go, and the number of threads that wait for it.
    fn hanging() -> (mpsc::Sender<()>, Arc<AtomicUsize>, impl Fn() + Clone + Send + 'static) {
        let (let_go, held) = mpsc::channel();
        let (held, count) = (Arc::new(Mutex::new(held)), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&count);
        let hang = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = lock(&held).recv();
        };
        (let_go, count, hang)
    }

    async fn reaches(count: &AtomicUsize, expected: usize) {
        while count.load(Ordering::SeqCst) < expected {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn whoever_asks_the_same_meanwhile_gets_the_same_answer() {
        let asked = Arc::new(Asked::default());
        let (let_go, begun, hang) = hanging();
        let ask = |path: &str, answer: u32| {
            let (asked, hang, question) = (Arc::clone(&asked), hang.clone(), question("vg", path));
            tokio::spawn(async move {
                let act = move || {
                    hang();
                    answer
                };
                asked.ask(question, LONG, act).await
            })
        };
        let first = ask("/same", 1);
        reaches(&begun, 1).await;
        let second = ask("/same", 2);
        // The runtime has one thread: this one is begun after the second is asked, and answered first or last.
        let other = ask("/other", 3);
        reaches(&begun, 2).await;
        drop(let_go);
        let answers = (first.await.unwrap(), second.await.unwrap(), other.await.unwrap());
        assert_eq!(answers, (Ok(1), Ok(1), Ok(3)));
        assert_eq!(begun.load(Ordering::SeqCst), 2);
        assert_eq!(asked.ask(question("vg", "/same"), LONG, || 4).await, Ok(4), "an answer is not kept");
    }

    #[tokio::test]
    async fn questions_that_are_never_answered_cost_few_threads_and_hold_no_other_group_up() {
        let asked = Arc::new(Asked::default());
        let (let_go, begun, hang) = hanging();
        for number in 0..2 * MOST {
            let question = question("dead", &format!("/{number}"));
            assert_eq!(asked.ask(question, Duration::ZERO, hang.clone()).await, Err(NoAnswer));
        }
        reaches(&begun, MOST).await;
        assert_eq!(asked.ask(question("well", "/0"), LONG, || ()).await, Ok(()));
        assert_eq!(begun.load(Ordering::SeqCst), MOST);
        drop(let_go);
        while !lock(&asked.open).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(asked.ask(question("dead", "/0"), LONG, || ()).await, Ok(()), "it goes on when they are");
    }

    #[tokio::test]
    async fn a_question_whose_answer_panics_can_be_asked_again() {
        let asked = Arc::new(Asked::default());
        assert_eq!(
            asked.ask(question("vg", "/"), LONG, || -> u32 { panic!("on purpose") }).await,
            Err(NoAnswer)
        );
        assert_eq!(asked.ask(question("vg", "/"), LONG, || 1).await, Ok(1));
    }
}
