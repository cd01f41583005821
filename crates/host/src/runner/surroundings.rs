//! Where programs run: in the host's namespaces and in a control group of the host's, whatever we ourselves are in.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The host's namespaces, seen from wherever this process lives.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    /// Those that differ from ours.
    foreign: Vec<(LinkNameSpaceType, OwnedFd)>,
}

impl Namespaces {
    /// Those of process 1, which is the host's when this process sees the host's processes.
    pub(super) fn of_the_host() -> io::Result<Namespaces> {
        // The mount namespace last: entering it hides the files of the others.
        let kinds = [
            ("ipc", LinkNameSpaceType::InterProcessCommunication),
            ("uts", LinkNameSpaceType::HostNameAndNISDomainName),
            ("net", LinkNameSpaceType::Network),
            ("mnt", LinkNameSpaceType::Mount),
        ];
        let mut foreign = Vec::new();
        for (name, kind) in kinds {
            let (host, ours) = (Path::new("/proc/1/ns").join(name), Path::new("/proc/self/ns").join(name));
            if std::fs::read_link(&host)? != std::fs::read_link(ours)? {
                foreign.push((kind, OwnedFd::from(File::open(host)?)));
            }
        }
        Ok(Namespaces { foreign })
    }

    /// Whether files are seen otherwise on the host.
    pub(super) fn mounts_differ(&self) -> bool {
        self.foreign.iter().any(|(kind, _)| matches!(kind, LinkNameSpaceType::Mount))
    }

    /// Moves the calling thread, which must not share its file system view with others, into them.
    pub(super) fn enter(&self) -> io::Result<()> {
        for (kind, fd) in &self.foreign {
            move_into_link_name_space(fd.as_fd(), Some(*kind))?;
        }
        Ok(())
    }

    /// Takes the calling thread for good into the host's mount namespace.
    pub(super) fn move_this_thread(&self) -> io::Result<()> {
        let Some((kind, fd)) = self.foreign.iter().find(|(kind, _)| matches!(kind, LinkNameSpaceType::Mount))
        else {
            return Ok(());
        };
        // SAFETY: only the view of the file system is unshared, no memory and no descriptors.
        #[expect(unsafe_code)]
        unsafe {
            rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS)?;
        }
        move_into_link_name_space(fd.as_fd(), Some(*kind))?;
        Ok(())
    }

    pub(super) fn try_clone(&self) -> io::Result<Namespaces> {
        let clone = |(kind, fd): &(LinkNameSpaceType, OwnedFd)| Ok((*kind, fd.try_clone()?));
        Ok(Namespaces { foreign: self.foreign.iter().map(clone).collect::<io::Result<_>>()? })
    }
}

/// A control group for children.
#[derive(Debug)]
pub(super) struct ControlGroup {
    pub(super) directory: File,
    /// Its `cgroup.procs`.
    pub(super) members: File,
}

impl ControlGroup {
    pub(super) fn try_clone(&self) -> io::Result<ControlGroup> {
        Ok(ControlGroup { directory: self.directory.try_clone()?, members: self.members.try_clone()? })
    }
}
