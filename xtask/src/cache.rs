//! What took long to make, kept outside the checkout and shared by all clones.
//!
//! An entry is a directory named by what it is and a hash of all that went into it. It is made under another name and
//! renamed when it is complete, so one that was interrupted is never taken for finished; a list of its files with
//! their sizes tells one that was damaged since. A lock per entry lets one process make it while others wait; the time
//! of the lock tells when the entry was last used.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::progress;

/// The variable that moves the cache.
pub(crate) const VARIABLE: &str = "LVMS_LAB_CACHE";

/// The list of an entry's files with their sizes.
const FILES: &str = "files.json";

/// The cache, in use by this process until it is dropped.
pub(crate) struct Cache {
    directory: PathBuf,
    /// Shared while the cache is in use; [`clean`] wants it alone.
    _in_use: File,
}

/// One entry, for people.
pub(crate) struct Kept {
    /// What it is, with the beginning of its hash.
    pub(crate) name: String,
    /// Bytes on disk.
    pub(crate) size: u64,
    /// Whether it was finished.
    pub(crate) complete: bool,
}

/// Where the cache lies.
pub(crate) fn directory() -> Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = from(VARIABLE)
        .or_else(|| from("XDG_CACHE_HOME").map(|home| home.join("lvms-lab")))
        .or_else(|| from("HOME").map(|home| home.join(".cache/lvms-lab")));
    let directory =
        directory.with_context(|| format!("no HOME: set {VARIABLE} to a directory for the lab's cache"))?;
    if directory.is_absolute() {
        Ok(directory)
    } else {
        bail!("{VARIABLE} is {}: give an absolute path", directory.display())
    }
}

impl Cache {
    /// Opens the cache for use.
    pub(crate) fn open() -> Result<Cache> {
        Cache::open_at(directory()?)
    }

    fn open_at(directory: PathBuf) -> Result<Cache> {
        claim(&directory)?;
        let in_use = lock_file(&directory, "in-use")?;
        in_use.lock_shared()?;
        let cache = Cache { directory, _in_use: in_use };
        cache.remove_halves()?;
        Ok(cache)
    }

    /// Removes what was interrupted and is made by nobody now.
    fn remove_halves(&self) -> Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some((name, _)) = name.strip_suffix(".half").and_then(|name| name.rsplit_once('.'))
                && lock_file(&self.directory, name)?.try_lock().is_ok()
            {
                fs::remove_dir_all(&path)?;
            }
        }
        Ok(())
    }

    /// A directory of the cache that is no entry, for tools that keep their own (Go's modules, cargo's artefacts).
    pub(crate) fn area(&self, name: &str) -> Result<PathBuf> {
        let directory = self.directory.join(name);
        fs::create_dir_all(&directory)?;
        Ok(directory)
    }

    /// The entry `kind` made of `inputs`; `make` fills a new directory if there is none.
    pub(crate) fn entry(
        &self,
        kind: &str,
        inputs: &[&str],
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let name = format!("{kind}-{}", hash(inputs));
        let path = self.directory.join(&name);
        // With the process in its name: a builder that outlived its killed command writes to another one.
        let half = self.directory.join(format!("{name}.{}.half", std::process::id()));
        let lock = lock_file(&self.directory, &name)?;
        if lock.try_lock().is_err() {
            let step = progress::step(format!("waiting for another command, which makes {kind}"));
            lock.lock()?;
            step.done();
        }
        lock.set_modified(SystemTime::now())?;
        if path.exists() {
            match damage(&path)? {
                None => return Ok(path),
                Some(damage) => {
                    eprintln!("  {name} in the cache is damaged ({damage}): making it again");
                    fs::remove_dir_all(&path)?;
                }
            }
        }
        if half.exists() {
            fs::remove_dir_all(&half)?;
        }
        fs::create_dir(&half)?;
        make(&half).with_context(|| format!("{kind} could not be made"))?;
        let files = serde_json::to_vec(&sizes(&half)?)?;
        fs::write(half.join(FILES), files)?;
        rustix::fs::sync();
        fs::rename(&half, &path)?;
        Ok(path)
    }

    /// What is kept, largest first.
    pub(crate) fn list(&self) -> Result<Vec<Kept>> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "locks" {
                let complete = !name.ends_with(".half");
                kept.push(Kept { name, size: size_on_disk(&path)?, complete });
            }
        }
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.size));
        Ok(kept)
    }

    /// Removes entries that nobody has used for so long, and returns their names. Tools' own areas stay: they look
    /// after themselves.
    pub(crate) fn remove_older_than(&self, age: Duration) -> Result<Vec<String>> {
        let mut removed = Vec::new();
        for kept in self.list()? {
            let path = self.directory.join(&kept.name);
            if !path.join(FILES).exists() {
                continue;
            }
            let lock = lock_file(&self.directory, &kept.name)?;
            let used = lock.metadata()?.modified()?;
            if used.elapsed().unwrap_or_default() > age && lock.try_lock().is_ok() {
                fs::remove_dir_all(&path).with_context(|| kept.name.clone())?;
                removed.push(kept.name);
            }
        }
        Ok(removed)
    }

    /// Fails unless `bytes` are free where the cache lies.
    pub(crate) fn require_space(&self, bytes: u64) -> Result<()> {
        require_space(&self.directory, bytes)
    }
}

/// Fails unless `bytes` are free at `path`.
pub(crate) fn require_space(path: &Path, bytes: u64) -> Result<()> {
    let space = rustix::fs::statvfs(path)?;
    let free = space.f_bavail * space.f_frsize;
    if free >= bytes {
        return Ok(());
    }
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    bail!("{} has {:.1} GiB free and the lab needs {:.1}: free some", path.display(), gib(free), gib(bytes))
}

/// Removes the whole cache, unless somebody uses it.
pub(crate) fn clean() -> Result<()> {
    let directory = directory()?;
    if !directory.exists() {
        return Ok(());
    }
    claim(&directory)?;
    let in_use = lock_file(&directory, "in-use")?;
    match in_use.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            bail!("the cache is in use: wait until other `cargo xtask` commands have ended")
        }
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    for entry in fs::read_dir(&directory)? {
        let path = entry?.path();
        // The locks stay: somebody may be waiting for one.
        if path.is_dir() && !path.ends_with("locks") {
            fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// The file that says that a directory is the lab's cache, and may be cleaned.
const MARK: &str = "CACHEDIR.TAG";

/// Marks a new or empty directory as the cache; refuses one with other things in it.
fn claim(directory: &Path) -> Result<()> {
    let name = || format!("{}: set {VARIABLE} to a new directory", directory.display());
    fs::create_dir_all(directory).with_context(name)?;
    let mark = directory.join(MARK);
    if mark.exists() {
        return Ok(());
    }
    // `.ci/run` puts cargo's artefacts there before anything else.
    let foreign = |entry: &fs::DirEntry| entry.file_name() != "locks" && entry.file_name() != "cargo-build";
    if let Some(entry) = fs::read_dir(directory)?.filter_map(Result::ok).find(foreign) {
        bail!(
            "{} is not the lab's cache ({:?} is in it): set {VARIABLE} to a new directory",
            directory.display(),
            entry.file_name()
        );
    }
    fs::write(
        mark,
        "Signature: 8a477f597d28d172789f06886806bc55\n# The cache of lvms's lab: `cargo xtask cache clean` empties it.\n",
    )?;
    Ok(())
}

fn lock_file(directory: &Path, name: &str) -> Result<File> {
    let locks = directory.join("locks");
    fs::create_dir_all(&locks)?;
    let path = locks.join(name);
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| path.display().to_string())
}

fn hash(inputs: &[&str]) -> String {
    let mut hash = Sha256::new();
    for input in inputs {
        hash.update(input.len().to_le_bytes());
        hash.update(input);
    }
    hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// Regular files of an entry, by path, with sizes.
fn sizes(entry: &Path) -> Result<BTreeMap<String, u64>> {
    let mut sizes = BTreeMap::new();
    walk(entry, &mut |path, metadata| {
        let name = path.strip_prefix(entry).unwrap_or(path).to_string_lossy().into_owned();
        if metadata.is_file() && name != FILES {
            sizes.insert(name, metadata.len());
        }
    })?;
    Ok(sizes)
}

fn damage(entry: &Path) -> Result<Option<String>> {
    let Ok(listed) = fs::read(entry.join(FILES)) else { return Ok(Some(format!("no {FILES}"))) };
    let Ok(listed) = serde_json::from_slice::<BTreeMap<String, u64>>(&listed) else {
        return Ok(Some(format!("{FILES} is not readable")));
    };
    let present = sizes(entry)?;
    let damaged = listed.iter().find(|(name, size)| present.get(*name) != Some(size));
    Ok(damaged.map(|(name, _)| format!("{name} is missing or has another size")))
}

fn size_on_disk(directory: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut size = 0;
    walk(directory, &mut |_, metadata| size += metadata.blocks() * 512)?;
    Ok(size)
}

fn walk(directory: &Path, visit: &mut impl FnMut(&Path, &fs::Metadata)) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        visit(&path, &metadata);
        if metadata.is_dir() {
            walk(&path, visit)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("lvms-cache-test-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn an_entry_is_made_once() {
        let directory = scratch("once");
        let cache = Cache::open_at(directory.clone()).unwrap();
        let first = cache.entry("thing", &["a"], |path| Ok(fs::write(path.join("x"), "1")?)).unwrap();
        let again = cache.entry("thing", &["a"], |_| bail!("made again")).unwrap();
        assert_eq!(first, again);
        assert_ne!(cache.entry("thing", &["b"], |_| Ok(())).unwrap(), first);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_making_that_failed_is_not_taken_for_finished() {
        let directory = scratch("half");
        let cache = Cache::open_at(directory.clone()).unwrap();
        let half = cache.entry("thing", &[], |path| {
            fs::write(path.join("half"), "")?;
            bail!("no")
        });
        assert!(format!("{:#}", half.unwrap_err()).contains("thing could not be made: no"));
        let whole = cache.entry("thing", &[], |path| Ok(fs::write(path.join("whole"), "")?)).unwrap();
        assert!(whole.join("whole").exists() && !whole.join("half").exists());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_damaged_entry_is_made_again() {
        let directory = scratch("damaged");
        let cache = Cache::open_at(directory.clone()).unwrap();
        let make = |path: &Path| Ok(fs::write(path.join("x"), "whole")?);
        let path = cache.entry("thing", &[], make).unwrap();
        fs::write(path.join("x"), "ha").unwrap();
        cache.entry("thing", &[], make).unwrap();
        assert_eq!(fs::read_to_string(path.join("x")).unwrap(), "whole");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_directory_with_other_things_in_it_is_never_taken_for_the_cache() {
        let directory = scratch("foreign");
        fs::create_dir_all(directory.join("photographs")).unwrap();
        let error = Cache::open_at(directory.clone()).err().unwrap().to_string();
        assert!(error.contains("not the lab's cache") && error.contains("photographs"), "{error}");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn what_was_interrupted_is_removed_unless_somebody_makes_it() {
        let directory = scratch("halves");
        drop(Cache::open_at(directory.clone()).unwrap());
        for name in ["left-1.7.half", "made-1.7.half"] {
            fs::create_dir(directory.join(name)).unwrap();
        }
        let making = lock_file(&directory, "made-1").unwrap();
        making.lock().unwrap();
        drop(Cache::open_at(directory.clone()).unwrap());
        assert!(!directory.join("left-1.7.half").exists() && directory.join("made-1.7.half").exists());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn only_what_nobody_uses_any_more_is_removed_as_old() {
        let directory = scratch("old");
        let cache = Cache::open_at(directory.clone()).unwrap();
        let old = cache.entry("old", &[], |_| Ok(())).unwrap();
        let new = cache.entry("new", &[], |_| Ok(())).unwrap();
        let area = cache.area("tool").unwrap();
        let name = old.file_name().unwrap().to_string_lossy().into_owned();
        let day = Duration::from_secs(24 * 3600);
        lock_file(&directory, &name).unwrap().set_modified(SystemTime::now() - 2 * day).unwrap();
        assert_eq!(cache.remove_older_than(day).unwrap(), [name]);
        assert!(!old.exists() && new.exists() && area.exists());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn too_little_space_is_an_error_that_says_how_much_is_needed() {
        let error = require_space(Path::new("/"), u64::MAX / 2).unwrap_err().to_string();
        assert!(error.contains("GiB free and the lab needs"), "{error}");
    }
}
