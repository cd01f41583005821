//! The objects of one kind that are ours, kept up to date by one watch.
//!
//! What a store says may be old: a step that cannot be undone looks at the API itself, or is guarded by the version.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// Which object, of its kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace; empty if it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// That of an object.
    pub fn of<K: Resource>(object: &K) -> Key {
        Key { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }

    /// An object without a namespace.
    pub fn named(name: &str) -> Key {
        Key { namespace: String::new(), name: name.to_owned() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            formatter.write_str(&self.name)
        } else {
            write!(formatter, "{}/{}", self.namespace, self.name)
        }
    }
}

/// Told of every change, with what was and what is.
type Listener<K> = Box<dyn Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync>;

/// Those who listen, and stop together.
type Audience<K> = Mutex<Vec<Listener<K>>>;

/// The objects of one kind that are ours.
pub struct Store<K> {
    shared: Arc<Shared<K>>,
    audience: Arc<Audience<K>>,
}

/// What stores have in common that share their objects.
struct Shared<K> {
    known: Mutex<Known<K>>,
    audiences: Mutex<Vec<Weak<Audience<K>>>>,
    complete: watch::Sender<bool>,
    /// Counts changes.
    changes: watch::Sender<u64>,
}

/// What the API has said.
struct Known<K> {
    objects: BTreeMap<Key, Arc<K>>,
    /// The uids of those that are gone, the latest last.
    gone: VecDeque<String>,
}

impl<K> Known<K> {
    fn end(&mut self, uid: Option<&str>) {
        self.gone.extend(uid.map(str::to_owned));
        while self.gone.len() > GONE {
            self.gone.pop_front();
        }
    }
}

/// What makes an object ours. It may take from the object what nobody reads.
pub type Keep<K> = Box<dyn Fn(&mut K) -> bool + Send + Sync>;

/// A failing watch is begun again after this long, and later at the most after [`LONGEST`].
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(10);

/// So many of those that are gone are remembered: more than can go while an answer is on its way.
const GONE: usize = 512;

/// Objects per answer: what is read at once is in memory at once.
const PAGE: u32 = 100;

/// So many seconds a watch lasts before it is begun anew, from where it was. A server that dies without a word is missed
/// soon after.
pub(crate) const WATCH: u32 = 60;

/// How a kind is watched.
pub fn config() -> Config {
    Config::default().page_size(PAGE).timeout(WATCH)
}

impl<K> Default for Store<K> {
    fn default() -> Store<K> {
        Store::of(Arc::new(Shared {
            known: Mutex::new(Known { objects: BTreeMap::new(), gone: VecDeque::new() }),
            audiences: Mutex::default(),
            complete: watch::Sender::new(false),
            changes: watch::Sender::new(0),
        }))
    }
}

impl<K> Store<K> {
    fn of(shared: Arc<Shared<K>>) -> Store<K> {
        let audience = Arc::default();
        let mut audiences = lock(&shared.audiences);
        audiences.retain(|one| one.strong_count() > 0);
        audiences.push(Arc::downgrade(&audience));
        drop(audiences);
        Store { shared, audience }
    }

    /// The same objects, for others who listen: they can stop alone.
    pub fn share(&self) -> Store<K> {
        Store::of(Arc::clone(&self.shared))
    }

    /// Tells nobody any more who listens here. Who listens may hold what holds this store: nothing else lets that go.
    pub fn hush(&self) {
        let listeners = std::mem::take(&mut *lock(&self.audience));
        drop(listeners);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K> Store<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// An object.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        lock(&self.shared.known).objects.get(key).cloned()
    }

    /// An object without a namespace.
    pub fn named(&self, name: &str) -> Option<Arc<K>> {
        self.get(&Key::named(name))
    }

    /// All that fulfil something.
    pub fn filter(&self, mut wanted: impl FnMut(&K) -> bool) -> Vec<Arc<K>> {
        lock(&self.shared.known).objects.values().filter(|object| wanted(object)).cloned().collect()
    }

    /// The first that fulfils something.
    pub fn find(&self, mut wanted: impl FnMut(&K) -> bool) -> Option<Arc<K>> {
        lock(&self.shared.known).objects.values().find(|object| wanted(object)).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<K>> {
        lock(&self.shared.known).objects.values().cloned().collect()
    }

    /// Who wants to be told of changes, and of all that is known already. It must not take long.
    pub fn listen(&self, listener: impl Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync + 'static) {
        // What changes meanwhile is told after this.
        let mut listeners = lock(&self.audience);
        for object in self.all() {
            listener(None, Some(&object));
        }
        listeners.push(Box::new(listener));
    }

    /// Waits until all objects that were there at first are known.
    pub async fn complete(&self) {
        // The sender lives as long as this store.
        let _ = self.shared.complete.subscribe().wait_for(|complete| *complete).await;
    }

    /// Waits until the objects show something.
    pub async fn until<T>(&self, mut shown: impl FnMut(&Store<K>) -> Option<T>) -> T {
        let mut changes = self.shared.changes.subscribe();
        loop {
            if let Some(found) = shown(self) {
                return found;
            }
            // The sender lives as long as this store.
            let _ = changes.changed().await;
        }
    }

    /// Whether all objects that were there at first are known.
    pub fn is_complete(&self) -> bool {
        *self.shared.complete.borrow()
    }

    /// Puts an object in that the API has just answered with: the watch tells of it a moment later. If it has told
    /// already, of something later or of its end, that holds.
    pub fn answered(&self, object: K) {
        let known = lock(&self.shared.known);
        let is_gone = object.meta().uid.as_ref().is_some_and(|uid| known.gone.contains(uid));
        if !is_gone {
            self.put(known, object);
        }
    }

    fn put(&self, mut known: MutexGuard<'_, Known<K>>, object: K) -> Key {
        let (key, object) = (Key::of(&object), Arc::new(object));
        if let Some(present) = known.objects.get(&key)
            && is_known(present.as_ref(), object.as_ref())
        {
            return key;
        }
        let former = known.objects.insert(key.clone(), Arc::clone(&object));
        match former {
            // Another one of its name: a list tells of neither the end nor the beginning.
            Some(former) if former.meta().uid != object.meta().uid => {
                known.end(former.meta().uid.as_deref());
                drop(known);
                self.tell(Some(&former), None);
                self.tell(None, Some(&object));
            }
            former => {
                drop(known);
                self.tell(former.as_ref(), Some(&object));
            }
        }
        key
    }

    /// One that is not ours any more.
    fn take(&self, key: &Key) {
        let before = lock(&self.shared.known).objects.remove(key);
        if before.is_some() {
            self.tell(before.as_ref(), None);
        }
    }

    /// One that is gone.
    fn end(&self, key: &Key, uid: Option<&str>) {
        let mut known = lock(&self.shared.known);
        known.end(uid);
        // Another one may have its name by now.
        let is_it = known.objects.get(key).is_some_and(|present| present.meta().uid.as_deref() == uid);
        let before = if is_it { known.objects.remove(key) } else { None };
        drop(known);
        if before.is_some() {
            self.tell(before.as_ref(), None);
        }
    }

    fn tell(&self, before: Option<&Arc<K>>, now: Option<&Arc<K>>) {
        for audience in lock(&self.shared.audiences).iter().filter_map(Weak::upgrade) {
            for listener in lock(&audience).iter() {
                listener(before, now);
            }
        }
        self.shared.changes.send_modify(|changes| *changes += 1);
    }

    /// Follows a watch for ever; `keep` says which objects are ours.
    pub async fn follow(self: Arc<Self>, api: Api<K>, config: Config, keep: Keep<K>) {
        let failure = self.follow_stream(watcher(api, config), &keep, |_| false).await;
        tracing::error!(?failure, "a watch has ended");
    }

    /// Follows a watch until it fails in a way that `is_fatal` knows, which is returned.
    pub async fn follow_stream(
        &self,
        stream: impl Stream<Item = Result<Event<K>, watcher::Error>>,
        keep: &Keep<K>,
        is_fatal: impl Fn(&watcher::Error) -> bool,
    ) -> Option<watcher::Error> {
        let mut stream = std::pin::pin!(stream);
        let mut listed = BTreeSet::new();
        let mut pause = FIRST;
        while let Some(event) = stream.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) if is_fatal(&error) => return Some(error),
                Err(error) => {
                    let kind = std::any::type_name::<K>().rsplit(':').next();
                    tracing::warn!(kind, error = %chain(&error), again_in = ?pause, "a watch has failed");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST);
                    continue;
                }
            };
            match event {
                Event::Init => listed.clear(),
                Event::InitApply(object) => {
                    listed.extend(self.apply(object, keep));
                }
                Event::InitDone => {
                    for object in self.filter(|object| !listed.contains(&Key::of(object))) {
                        self.end(&Key::of(object.as_ref()), object.meta().uid.as_deref());
                    }
                    listed.clear();
                    self.shared.complete.send_replace(true);
                    pause = FIRST;
                }
                Event::Apply(object) => {
                    self.apply(object, keep);
                    pause = FIRST;
                }
                Event::Delete(object) => self.end(&Key::of(&object), object.meta().uid.as_deref()),
            }
        }
        None
    }

    fn apply(&self, mut object: K, keep: &Keep<K>) -> Option<Key> {
        object.meta_mut().managed_fields = None;
        if keep(&mut object) {
            let mut known = lock(&self.shared.known);
            // A list that is older than it has ended it.
            known.gone.retain(|gone| Some(gone) != object.meta().uid.as_ref());
            return Some(self.put(known, object));
        }
        self.take(&Key::of(&object));
        None
    }
}

/// Whether the first of two states of an object is the later one, or the same. Versions of one kind can be compared as
/// numbers.
fn is_known<K: Resource>(one: &K, other: &K) -> bool {
    let version = |object: &K| object.meta().resource_version.as_ref()?.parse::<u64>().ok();
    match (version(one), version(other)) {
        (Some(first), Some(second)) => one.meta().uid == other.meta().uid && first >= second,
        _ => false,
    }
}

/// An error and what caused it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors repeat their cause.
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slim::Node;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn node(name: &str, version: &str) -> Node {
        let metadata = ObjectMeta {
            name: Some(name.into()),
            resource_version: Some(version.into()),
            uid: Some(name.into()),
            ..ObjectMeta::default()
        };
        Node { metadata, spec: crate::slim::NodeSpec::default() }
    }

    async fn fed(store: &Store<Node>, events: Vec<Result<Event<Node>, watcher::Error>>) {
        let keep: Keep<Node> = Box::new(|node| node.name_any() != "foreign");
        store.follow_stream(futures::stream::iter(events), &keep, |_| false).await;
    }

    fn names(store: &Store<Node>) -> Vec<String> {
        store.all().iter().map(|node| node.name_any()).collect()
    }

    #[tokio::test]
    async fn what_is_not_ours_is_not_kept_and_what_is_gone_after_a_new_list_is_forgotten() {
        let store = Store::default();
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        store.listen(move |before: Option<&Arc<Node>>, now| {
            let name = before.or(now).map(|node| node.name_any()).unwrap_or_default();
            lock(&telling).push((name, before.is_some(), now.is_some()));
        });
        assert!(!store.is_complete());
        let list = [node("a", "1"), node("foreign", "1"), node("b", "1")];
        let mut events = vec![Ok(Event::Init)];
        events.extend(list.map(|node| Ok(Event::InitApply(node))));
        events.extend([Ok(Event::InitDone), Ok(Event::Apply(node("c", "2")))]);
        fed(&store, events).await;
        assert!(store.is_complete());
        assert_eq!(names(&store), ["a", "b", "c"]);
        let again = vec![Ok(Event::Init), Ok(Event::InitApply(node("b", "5"))), Ok(Event::InitDone)];
        fed(&store, again).await;
        assert_eq!(names(&store), ["b"]);
        let told = lock(&told).clone();
        let expected = [
            ("a", false, true),
            ("b", false, true),
            ("c", false, true),
            ("b", true, true),
            ("a", true, false),
            ("c", true, false),
        ];
        assert_eq!(told, expected.map(|(name, before, now)| (name.to_owned(), before, now)));
    }

    #[tokio::test]
    async fn whoever_begins_to_listen_is_told_of_what_is_known_already() {
        let store = Store::default();
        fed(&store, vec![Ok(Event::Apply(node("a", "1"))), Ok(Event::Apply(node("b", "2")))]).await;
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        store.listen(move |before: Option<&Arc<Node>>, now| {
            lock(&telling).push((before.is_some(), now.map(|node| node.name_any()).unwrap_or_default()));
        });
        fed(&store, vec![Ok(Event::Apply(node("b", "3")))]).await;
        let expected = [(false, "a"), (false, "b"), (true, "b")];
        assert_eq!(lock(&told).clone(), expected.map(|(before, name)| (before, name.to_owned())));
    }

    #[tokio::test]
    async fn an_answer_is_not_overwritten_by_an_older_event() {
        let store = Store::default();
        store.answered(node("a", "10"));
        fed(&store, vec![Ok(Event::Apply(node("a", "9")))]).await;
        assert_eq!(store.named("a").unwrap().metadata.resource_version.as_deref(), Some("10"));
        fed(&store, vec![Ok(Event::Apply(node("a", "11")))]).await;
        assert_eq!(store.named("a").unwrap().metadata.resource_version.as_deref(), Some("11"));
    }

    #[tokio::test]
    async fn an_answer_does_not_bring_back_what_the_watch_has_seen_go() {
        let store = Store::default();
        let events = [node("a", "1"), node("b", "2"), node("foreign", "3")];
        fed(&store, events.map(|node| Ok(Event::Apply(node))).into()).await;
        fed(&store, vec![Ok(Event::Delete(node("a", "6")))]).await;
        store.answered(node("a", "5"));
        assert_eq!(names(&store), ["b"]);
        // Also what went while nobody watched, and what was never known.
        fed(&store, vec![Ok(Event::Init), Ok(Event::InitDone), Ok(Event::Delete(node("c", "8")))]).await;
        for late in [node("b", "7"), node("c", "7")] {
            store.answered(late);
        }
        assert_eq!(names(&store), [""; 0]);
        // Another one of its name is another one.
        let mut again = node("a", "9");
        again.metadata.uid = Some("another".into());
        store.answered(again);
        fed(&store, vec![Ok(Event::Delete(node("a", "6")))]).await;
        assert_eq!(names(&store), ["a"]);
    }

    #[tokio::test]
    async fn what_was_replaced_while_nobody_watched_is_told_as_an_end_and_a_beginning() {
        let store = Store::default();
        fed(&store, vec![Ok(Event::Apply(node("a", "1")))]).await;
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        store.listen(move |before: Option<&Arc<Node>>, now: Option<&Arc<Node>>| {
            let uid = |node: Option<&Arc<Node>>| node.and_then(|node| node.metadata.uid.clone());
            lock(&telling).push((uid(before), uid(now)));
        });
        lock(&told).clear();
        let mut again = node("a", "9");
        again.metadata.uid = Some("another".into());
        let list = vec![Ok(Event::Init), Ok(Event::InitApply(again)), Ok(Event::InitDone)];
        fed(&store, list).await;
        let (former, another) = (Some("a".to_owned()), Some("another".to_owned()));
        assert_eq!(*lock(&told), [(former, None), (None, another.clone())]);
        // What was asked of the former one is answered late.
        store.answered(node("a", "5"));
        assert_eq!(store.named("a").unwrap().metadata.uid, another);
    }

    #[tokio::test]
    async fn what_a_list_is_too_old_to_have_comes_back_and_is_answered_for_again() {
        let store = Store::default();
        fed(&store, vec![Ok(Event::Init)]).await;
        // Made after the list was begun.
        store.answered(node("a", "5"));
        fed(&store, vec![Ok(Event::InitDone)]).await;
        assert_eq!(names(&store), [""; 0]);
        fed(&store, vec![Ok(Event::Apply(node("a", "5")))]).await;
        store.answered(node("a", "6"));
        assert_eq!(store.named("a").unwrap().metadata.resource_version.as_deref(), Some("6"));
    }

    #[tokio::test]
    async fn who_shares_a_store_is_told_the_same_until_told_nothing_any_more() {
        let store = Store::default();
        let told = |store: &Store<Node>| {
            let told = Arc::new(Mutex::new(Vec::new()));
            let telling = Arc::downgrade(&told);
            let held = Arc::clone(&told);
            store.listen(move |_, now| {
                let _held = &held;
                lock(&telling.upgrade().unwrap()).extend(now.map(|node| node.name_any()));
            });
            told
        };
        let shared = store.share();
        let (one, other) = (told(&store), told(&shared));
        fed(&store, vec![Ok(Event::Apply(node("a", "1")))]).await;
        shared.answered(node("b", "2"));
        assert_eq!(
            (lock(&one).clone(), lock(&other).clone()),
            (vec!["a".into(), "b".into()], vec!["a".into(), "b".to_owned()])
        );
        shared.hush();
        fed(&store, vec![Ok(Event::Apply(node("c", "3")))]).await;
        assert_eq!((lock(&one).len(), lock(&other).len()), (3, 2));
        assert_eq!(names(&shared), ["a", "b", "c"]);
        assert_eq!(Arc::strong_count(&other), 1, "somebody holds what listened");
        drop(shared);
        let _another = store.share();
        assert_eq!(lock(&store.shared.audiences).len(), 2);
    }

    #[tokio::test]
    async fn what_is_gone_is_not_remembered_for_ever() {
        let store = Store::default();
        let deleted = (0..GONE + 10).map(|number| Ok(Event::Delete(node(&number.to_string(), "1"))));
        fed(&store, deleted.collect()).await;
        assert_eq!(lock(&store.shared.known).gone.len(), GONE);
        assert_eq!(lock(&store.shared.known).gone.front().map(String::as_str), Some("10"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_does_not_pass_ends_the_watch_and_others_do_not() {
        let store: Store<Node> = Store::default();
        let keep: Keep<Node> = Box::new(|_| true);
        let failed = || Err(watcher::Error::NoResourceVersion);
        let events = vec![failed(), Ok(Event::Apply(node("a", "1"))), failed()];
        let seen = std::cell::Cell::new(0);
        let fatal = |_: &watcher::Error| {
            seen.set(seen.get() + 1);
            seen.get() == 2
        };
        let end = store.follow_stream(futures::stream::iter(events), &keep, fatal).await;
        assert!(end.is_some());
        assert_eq!(names(&store), ["a"]);
    }
}
