//! Reads of disks, each by a thread of its own: a dead disk never answers, and keeps who reads it for ever.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A disk that has not answered for so long is not asked until it has.
const LIMIT: Duration = Duration::from_secs(5);

/// Reads that have no answer yet, and since when.
type Open = BTreeMap<(PathBuf, u64), Instant>;

/// The reads that wait for their disks.
#[derive(Debug, Default, Clone)]
pub(super) struct Reading {
    open: Arc<Mutex<Open>>,
}

/// Closes a read, though it panics.
struct Answering {
    reading: Reading,
    key: (PathBuf, u64),
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.reading.open(|open| open.remove(&self.key));
    }
}

impl Reading {
    fn open<T>(&self, act: impl FnOnce(&mut Open) -> T) -> T {
        act(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a disk does not answer.
    pub(super) fn is_silent(&self, disk: &Path) -> bool {
        self.open(|open| open.iter().any(|((path, _), since)| path == disk && since.elapsed() >= LIMIT))
    }

    /// What is read from a disk, unless that does not answer in time.
    pub(super) fn read<T: Send + 'static>(
        &self,
        disk: &Path,
        read: impl FnOnce(&Path) -> T + Send + 'static,
    ) -> Option<T> {
        self.read_within(LIMIT, disk, read)
    }

    fn read_within<T: Send + 'static>(
        &self,
        limit: Duration,
        disk: &Path,
        read: impl FnOnce(&Path) -> T + Send + 'static,
    ) -> Option<T> {
        if self.is_silent(disk) {
            return None;
        }
        let key = self.open(|open| {
            let key = (disk.to_owned(), open.keys().map(|(_, number)| number + 1).max().unwrap_or(0));
            open.insert(key.clone(), Instant::now());
            key
        });
        let answering = Answering { reading: self.clone(), key };
        let (answer, answered) = sync_channel(1);
        let act = move || {
            let read = read(&answering.key.0);
            drop(answering);
            let _ = answer.send(read);
        };
        // It sees the host's files as this thread does.
        if let Err(error) = std::thread::Builder::new().name("reads".into()).spawn(act) {
            tracing::warn!(%error, "there is no thread to read a disk with");
            return None;
        }
        answered.recv_timeout(limit).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_disk_that_does_not_answer_is_not_asked_until_it_has_and_others_are() {
        let (reading, dead, well) = (Reading::default(), Path::new("/dev/dead"), Path::new("/dev/well"));
        let (let_go, held) = channel::<()>();
        assert_eq!(
            reading.read_within(Duration::ZERO, dead, move |_| {
                let _ = held.recv();
            }),
            None
        );
        assert!(!reading.is_silent(dead), "it has just been asked");
        reading.open(|open| open.values_mut().for_each(|since| *since = Instant::now() - LIMIT));
        assert!(reading.is_silent(dead) && !reading.is_silent(well));
        assert_eq!(reading.read(dead, |_| panic!("it is asked once more")), None::<()>);
        assert_eq!(reading.read(well, |disk| disk.to_owned()).as_deref(), Some(well));
        drop(let_go);
        while reading.is_silent(dead) {
            std::thread::yield_now();
        }
        assert_eq!(reading.read(dead, |_| 7), Some(7));
    }
}
