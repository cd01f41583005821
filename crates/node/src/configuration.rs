//! `lvmd.yaml`, read at the start and followed while we run: a valid change takes effect at once, an invalid one leaves
//! the last good one in force and says so. So does a file that is gone.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lvms_host::desired::Desired;
use lvms_host::desired::lvmd::{self, Mistake};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::sync::watch;

/// Where TopoLVM has it.
pub const DEFAULT: &str = "/etc/topolvm/lvmd.yaml";

/// A file that is being replaced is back sooner.
const REPLACED: Duration = Duration::from_secs(2);

/// The configuration in force, and what is wrong with the file now.
pub struct Configuration {
    in_force: watch::Sender<Arc<Desired>>,
    /// What was in force at the start: some fields are read only then.
    first: Arc<Desired>,
    mistakes: Mutex<Vec<Mistake>>,
}

impl Configuration {
    /// Reads the file, which must be right at the start.
    pub fn read(path: &Path) -> Result<Arc<Configuration>> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        match lvmd::read(&text) {
            Ok(read) => {
                for remark in &read.remarks {
                    tracing::warn!(file = %path.display(), "{remark}");
                }
                let first = Arc::new(read.desired);
                let in_force = watch::Sender::new(Arc::clone(&first));
                Ok(Arc::new(Configuration { in_force, first, mistakes: Mutex::default() }))
            }
            Err(mistakes) => {
                let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
                bail!("{} is wrong:\n  {}", path.display(), lines.join("\n  "))
            }
        }
    }

    /// Reads the file; while it is wrong or missing, nothing is offered until it is mended. For whoever has more to do
    /// than to make volumes.
    pub fn read_or_wait(path: &Path) -> Arc<Configuration> {
        Configuration::read(path).unwrap_or_else(|error| {
            tracing::error!("{error:#}");
            tracing::error!(file = %path.display(), "there is no configuration until this file is mended");
            let mistake = Mistake { line: 1, field: String::new(), problem: format!("{error:#}") };
            Arc::new(Configuration {
                in_force: watch::Sender::new(Arc::default()),
                first: Arc::default(),
                mistakes: Mutex::new(vec![mistake]),
            })
        })
    }

    /// What is in force now.
    pub fn desired(&self) -> Arc<Desired> {
        Arc::clone(&self.in_force.borrow())
    }

    /// Tells whenever another one is in force, or the file has become wrong or right.
    pub fn watch(&self) -> watch::Receiver<Arc<Desired>> {
        self.in_force.subscribe()
    }

    /// Whether the file as it is now is not in force.
    pub fn is_wrong(&self) -> bool {
        !self.mistakes.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// What is wrong with the file as it is now.
    pub fn mistakes(&self) -> Vec<String> {
        let mistakes = self.mistakes.lock().unwrap_or_else(PoisonError::into_inner);
        mistakes.iter().map(ToString::to_string).collect()
    }

    /// Fields of the file that have changed and are read only at the start.
    pub fn needs_start(&self) -> Vec<&'static str> {
        let (first, now) = (&self.first, self.desired());
        let fields = [
            ("lvm-command-prefix", first.lvm_command_prefix != now.lvm_command_prefix),
            ("socket-name", first.socket_name != now.socket_name),
        ];
        fields.into_iter().filter(|(_, changed)| *changed).map(|(field, _)| field).collect()
    }

    fn take(&self, path: &Path, text: &str) {
        match lvmd::read(text) {
            Ok(read) => {
                let mended = !self.replace_mistakes(Vec::new()).is_empty();
                let mut changed = false;
                self.in_force.send_if_modified(|desired| {
                    changed = **desired != read.desired;
                    *desired = Arc::new(read.desired);
                    changed || mended
                });
                if changed || mended {
                    tracing::info!(file = %path.display(), "the configuration has changed and is in force");
                    for field in self.needs_start() {
                        tracing::warn!(
                            file = %path.display(),
                            field,
                            "this field is read at the start: what it was then stays in force until lvms is started again"
                        );
                    }
                }
            }
            Err(found) => self.refuse(path, found),
        }
    }

    /// The file is wrong, or is not there.
    fn refuse(&self, path: &Path, found: Vec<Mistake>) {
        if self.replace_mistakes(found.clone()) == found {
            return;
        }
        for mistake in &found {
            tracing::error!(file = %path.display(), "{mistake}");
        }
        tracing::error!(file = %path.display(), "the configuration is wrong: the last good one stays in force");
        // Who tells of it is told, though what is in force is the same.
        self.in_force.send_modify(|_| {});
    }

    fn replace_mistakes(&self, now: Vec<Mistake>) -> Vec<Mistake> {
        std::mem::replace(&mut self.mistakes.lock().unwrap_or_else(PoisonError::into_inner), now)
    }

    /// Follows the file, in a thread of its own, for ever.
    pub fn follow(self: &Arc<Self>, path: PathBuf) -> Result<()> {
        let events = inotify::init(CreateFlags::CLOEXEC)?;
        watch_directories(&events, &path)?;
        let configuration = Arc::clone(self);
        std::thread::Builder::new().name("configuration".into()).spawn(move || {
            // What has changed since it was read is seen at once.
            let mut last = None;
            loop {
                // A link may lead elsewhere now, or its directory be another one.
                let is_watched = watch_directories(&events, &path).is_ok();
                match read_replaced(&path, &events) {
                    Ok(text) if last.as_ref() == Some(&text) => {}
                    Ok(text) => {
                        configuration.take(&path, &text);
                        last = Some(text);
                    }
                    Err(error) => {
                        let problem = format!("the configuration cannot be read: {error}");
                        configuration.refuse(&path, vec![Mistake { line: 1, field: String::new(), problem }]);
                        last = None;
                        // With its directory the watch goes, too, and only looking shows that both are back.
                        std::thread::sleep(REPLACED);
                        continue;
                    }
                }
                // It has come back between the two, and its next change would not be seen.
                if !is_watched {
                    std::thread::sleep(REPLACED);
                    continue;
                }
                let mut buffer = [MaybeUninit::uninit(); 4096];
                if let Err(error) = inotify::Reader::new(&events, &mut buffer).next()
                    && error != rustix::io::Errno::INTR
                {
                    tracing::error!(%error, "the configuration is not followed any more");
                    return;
                }
            }
        })?;
        Ok(())
    }
}

/// While a file is replaced it is not there for a moment.
fn read_replaced(path: &Path, events: &OwnedFd) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::thread::sleep(REPLACED);
            // Its directory may be another one now.
            let _ = watch_directories(events, path);
            fs::read_to_string(path)
        }
        read => read,
    }
}

/// Watches the directories in which the file, and what its links lead to, can be replaced: a ConfigMap is a link to a
/// link to a directory.
fn watch_directories(events: &OwnedFd, path: &Path) -> Result<()> {
    let flags = WatchFlags::CLOSE_WRITE
        | WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE
        | WatchFlags::MOVE_SELF;
    let mut place = path.to_owned();
    for _ in 0..8 {
        let directory = place.parent().context("the configuration is a directory")?.to_owned();
        inotify::add_watch(events, &directory, flags).with_context(|| directory.display().to_string())?;
        let mut next = None;
        let mut at = place.as_path();
        // The file itself, or a directory on its way, may be the link.
        while let Some(parent) = at.parent() {
            if let Ok(target) = fs::read_link(at) {
                let rest = place.strip_prefix(at).unwrap_or(Path::new("")).to_owned();
                let target = parent.join(target);
                next = Some(if rest.as_os_str().is_empty() { target } else { target.join(rest) });
                let _ = inotify::add_watch(events, parent, flags);
                break;
            }
            at = parent;
        }
        match next {
            Some(next) => place = next,
            None => break,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::time::Instant;

    const ONE: &str = "device-classes: [{name: one, volume-group: vg}]";
    const TWO: &str = "device-classes: [{name: two, volume-group: vg}]";

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("lvms-configuration-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn wait(what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_valid_change_takes_effect_and_an_invalid_one_leaves_the_last_good_one() {
        let directory = scratch("change");
        let path = directory.join("lvmd.yaml");
        fs::write(&path, ONE).unwrap();
        let configuration = Configuration::read(&path).unwrap();
        configuration.follow(path.clone()).unwrap();
        fs::write(&path, TWO).unwrap();
        wait("the new configuration", || configuration.desired().classes[0].name == "two");
        let mut told = configuration.watch();
        fs::write(&path, "device-classes: nonsense").unwrap();
        wait("the mistake to be noticed", || configuration.is_wrong());
        wait("who tells of it to be told", || told.has_changed().unwrap());
        told.mark_unchanged();
        assert!(configuration.mistakes()[0].contains("device-classes"), "{:?}", configuration.mistakes());
        assert_eq!(configuration.desired().classes[0].name, "two");
        fs::write(&path, ONE).unwrap();
        wait("the mistake to be mended", || !configuration.is_wrong());
        wait("who tells of it to be told", || told.has_changed().unwrap());
        assert_eq!(configuration.desired().classes[0].name, "one");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_file_that_is_deleted_is_told_and_the_last_good_one_stays_in_force() {
        let directory = scratch("deleted");
        let path = directory.join("lvmd.yaml");
        fs::write(&path, ONE).unwrap();
        let configuration = Configuration::read(&path).unwrap();
        let mut told = configuration.watch();
        configuration.follow(path.clone()).unwrap();
        fs::remove_file(&path).unwrap();
        wait("the file to be missed", || configuration.is_wrong());
        wait("who tells of it to be told", || told.has_changed().unwrap());
        told.mark_unchanged();
        assert!(configuration.mistakes()[0].contains("cannot be read"), "{:?}", configuration.mistakes());
        assert_eq!(configuration.desired().classes[0].name, "one");
        fs::write(&path, ONE).unwrap();
        wait("the file to be found", || !configuration.is_wrong());
        wait("who tells of it to be told", || told.has_changed().unwrap());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_directory_that_was_removed_and_is_back_is_followed_again() {
        let directory = scratch("removed");
        let path = directory.join("lvmd.yaml");
        fs::write(&path, ONE).unwrap();
        let configuration = Configuration::read(&path).unwrap();
        configuration.follow(path.clone()).unwrap();
        // Back at any moment, before it is missed and after.
        for away in [Duration::ZERO, REPLACED / 2, 2 * REPLACED + REPLACED / 2] {
            fs::remove_dir_all(&directory).unwrap();
            std::thread::sleep(away);
            fs::create_dir(&directory).unwrap();
            for (text, name) in [(TWO, "two"), (ONE, "one")] {
                fs::write(&path, text).unwrap();
                wait("what the new directory has", || {
                    !configuration.is_wrong() && configuration.desired().classes[0].name == name
                });
            }
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_directory_in_the_place_of_another_is_followed() {
        let all = scratch("replaced");
        let (directory, other) = (all.join("now"), all.join("other"));
        for directory in [&directory, &other] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("lvmd.yaml"), TWO).unwrap();
        }
        let path = directory.join("lvmd.yaml");
        let configuration = Configuration::read(&path).unwrap();
        configuration.follow(path.clone()).unwrap();
        let is = |name: &str| !configuration.is_wrong() && configuration.desired().classes[0].name == name;
        fs::write(&path, ONE).unwrap();
        wait("it to be followed", || is("one"));
        fs::rename(&directory, all.join("before")).unwrap();
        fs::rename(&other, &directory).unwrap();
        wait("what the other directory has", || is("two"));
        fs::write(&path, ONE).unwrap();
        wait("its next change", || is("one"));
        fs::remove_dir_all(all).unwrap();
    }

    #[test]
    fn fields_that_are_read_at_the_start_are_told_when_they_change() {
        let directory = scratch("start");
        let path = directory.join("lvmd.yaml");
        fs::write(&path, ONE).unwrap();
        let configuration = Configuration::read(&path).unwrap();
        let take = |text: &str| {
            configuration.take(&path, text);
            configuration.needs_start()
        };
        assert_eq!(take(TWO), [""; 0]);
        assert_eq!(take(&format!("lvm-command-prefix: [/sbin/lvm]\n{TWO}")), ["lvm-command-prefix"]);
        let both = format!("socket-name: /run/s\nlvm-command-prefix: [/sbin/lvm]\n{ONE}");
        assert_eq!(take(&both), ["lvm-command-prefix", "socket-name"]);
        assert_eq!(configuration.desired().classes[0].name, "one", "the rest is in force");
        assert_eq!(take(&format!("lvm-command-prefix: []\n{TWO}")), [""; 0]);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_swapped_link_of_a_config_map_is_followed() {
        let directory = scratch("link");
        for (name, text) in [("..1", ONE), ("..2", TWO)] {
            fs::create_dir(directory.join(name)).unwrap();
            fs::write(directory.join(name).join("lvmd.yaml"), text).unwrap();
        }
        symlink("..1", directory.join("..data")).unwrap();
        let path = directory.join("lvmd.yaml");
        symlink("..data/lvmd.yaml", &path).unwrap();
        let configuration = Configuration::read(&path).unwrap();
        configuration.follow(path).unwrap();
        symlink("..2", directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
        wait("the new configuration", || configuration.desired().classes[0].name == "two");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_file_that_is_wrong_or_missing_at_the_start_can_be_waited_for() {
        for (name, text) in [("missing", None), ("broken", Some("device-classes: nonsense"))] {
            let directory = scratch(name);
            let path = directory.join("lvmd.yaml");
            if let Some(text) = text {
                fs::write(&path, text).unwrap();
            }
            let configuration = Configuration::read_or_wait(&path);
            assert!(configuration.is_wrong() && configuration.desired().classes.is_empty());
            configuration.follow(path.clone()).unwrap();
            fs::write(&path, ONE).unwrap();
            wait("the file to be mended", || !configuration.is_wrong());
            assert_eq!(configuration.desired().classes[0].name, "one");
            fs::remove_dir_all(directory).unwrap();
        }
    }

    #[test]
    fn a_wrong_file_at_the_start_names_every_mistake() {
        let directory = scratch("wrong");
        let path = directory.join("lvmd.yaml");
        fs::write(&path, "device-classes: [{name: a-, volume-group: ''}]").unwrap();
        let error = format!("{:#}", Configuration::read(&path).err().unwrap());
        assert!(
            error.contains("device-classes[0].name") && error.contains("device-classes[0].volume-group"),
            "{error}"
        );
        fs::remove_dir_all(directory).unwrap();
    }
}
