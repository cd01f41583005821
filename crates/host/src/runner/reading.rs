//! Reads of disks, those of each by a thread of its own: a dead disk never answers, and keeps who reads it for ever.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A disk that has not answered for so long is not asked until it has.
const LIMIT: Duration = Duration::from_secs(5);

/// A thread that has had nothing to read for so long ends.
const IDLE: Duration = Duration::from_secs(90);

type Read = Box<dyn FnOnce(&Path) + Send>;

#[derive(Debug, Default)]
struct State {
    readers: BTreeMap<PathBuf, Sender<Read>>,
    /// Reads that have no answer yet, and since when.
    open: BTreeMap<(PathBuf, u64), Instant>,
}

/// Who reads disks.
#[derive(Debug, Default, Clone)]
pub(super) struct Reading {
    state: Arc<Mutex<State>>,
}

/// Closes a read, though it panics.
struct Answering {
    reading: Reading,
    key: (PathBuf, u64),
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.reading.with(|state| state.open.remove(&self.key));
    }
}

impl Reading {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a disk does not answer.
    pub(super) fn is_silent(&self, disk: &Path) -> bool {
        let is_late =
            |((path, _), since): (&(PathBuf, u64), &Instant)| path == disk && since.elapsed() >= LIMIT;
        self.with(|state| state.open.iter().any(is_late))
    }

    /// What is read from each of these disks, unless that does not answer in time. None waits for another.
    pub(super) fn read<T: Send + 'static>(
        &self,
        disks: &[&Path],
        read: impl FnOnce(&Path) -> T + Clone + Send + 'static,
    ) -> Vec<Option<T>> {
        self.read_within(LIMIT, disks, read)
    }

    /// What is read from each of these disks, unless that takes longer.
    pub(super) fn read_within<T: Send + 'static>(
        &self,
        limit: Duration,
        disks: &[&Path],
        read: impl FnOnce(&Path) -> T + Clone + Send + 'static,
    ) -> Vec<Option<T>> {
        let deadline = Instant::now() + limit;
        let asked: Vec<_> = disks.iter().map(|disk| self.ask(disk, read.clone())).collect();
        let answer = |answered: Receiver<T>| {
            answered.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
        };
        asked.into_iter().map(|answered| answered.and_then(answer)).collect()
    }

    fn ask<T: Send + 'static>(
        &self,
        disk: &Path,
        read: impl FnOnce(&Path) -> T + Send + 'static,
    ) -> Option<Receiver<T>> {
        if self.is_silent(disk) {
            return None;
        }
        let (answer, answered) = sync_channel(1);
        let unread = self.with(|state| {
            let number = state.open.keys().map(|(_, number)| number + 1).max().unwrap_or(0);
            let key = (disk.to_owned(), number);
            state.open.insert(key.clone(), Instant::now());
            let answering = Answering { reading: self.clone(), key };
            let read: Read = Box::new(move |disk| {
                let read = read(disk);
                drop(answering);
                let _ = answer.send(read);
            });
            let unheard = match state.readers.get(disk) {
                Some(reader) => reader.send(read).map_err(|unheard| unheard.0).err(),
                None => Some(read),
            };
            unheard.map(|read| {
                let (reader, reads) = channel();
                let _ = reader.send(read);
                state.readers.insert(disk.to_owned(), reader);
                reads
            })
        });
        if let Some(Err(error)) = unread.map(|reads| self.begin(disk, reads)) {
            tracing::warn!(%error, "there is no thread to read a disk with");
        }
        Some(answered)
    }

    /// A thread that reads a disk, and sees the host's files as this one does.
    fn begin(&self, disk: &Path, reads: Receiver<Read>) -> std::io::Result<()> {
        let (reading, disk) = (self.clone(), disk.to_owned());
        let go = move || loop {
            let next = reads.recv_timeout(IDLE).or_else(|_| {
                // Whoever asks does so with the same lock: nobody's read is left behind.
                reading.with(|state| reads.try_recv().inspect_err(|_| drop(state.readers.remove(&disk))))
            });
            match next {
                Ok(read) => read(&disk),
                Err(_) => return,
            }
        };
        std::thread::Builder::new().name("reads".into()).spawn(go).map(drop)
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
        let held = Arc::new(Mutex::new(held));
        let hangs = move |_: &Path| {
            let _ = held.lock().unwrap().recv();
        };
        assert_eq!(reading.read_within(Duration::ZERO, &[dead], hangs), [None]);
        assert!(!reading.is_silent(dead), "it has just been asked");
        reading.with(|state| state.open.values_mut().for_each(|since| *since = Instant::now() - LIMIT));
        assert!(reading.is_silent(dead) && !reading.is_silent(well));
        assert_eq!(reading.read(&[dead], |_| panic!("it is asked once more")), [None::<()>]);
        assert_eq!(reading.read(&[dead, well], |disk| disk.to_owned()), [None, Some(well.to_owned())]);
        drop(let_go);
        while reading.is_silent(dead) {
            std::thread::yield_now();
        }
        assert_eq!(reading.read(&[dead], |_| 7), [Some(7)]);
    }
}
