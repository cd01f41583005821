//! Mounts that appear with all of their own options at once. Whoever is killed between two steps must leave no target
//! that can be written and should not be: nothing tells such a one from one that was asked for.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind,
    mount_remount, move_mount, open_tree, unmount,
};

/// Where a mount is made that only one thread of ours sees.
const PLACE: &str = "/run";

/// How a mount remembers when files were read.
const TIMES: MountFlags = MountFlags::NOATIME.union(MountFlags::STRICTATIME).union(MountFlags::RELATIME);

/// What a flag of one mount sets and what it takes back; `None` if it is no such flag.
fn meaning(flag: &str) -> Option<(MountFlags, MountFlags)> {
    const NONE: MountFlags = MountFlags::empty();
    Some(match flag {
        "ro" => (MountFlags::RDONLY, NONE),
        "rw" => (NONE, MountFlags::RDONLY),
        "nosuid" => (MountFlags::NOSUID, NONE),
        "suid" => (NONE, MountFlags::NOSUID),
        "nodev" => (MountFlags::NODEV, NONE),
        "dev" => (NONE, MountFlags::NODEV),
        "noexec" => (MountFlags::NOEXEC, NONE),
        "exec" => (NONE, MountFlags::NOEXEC),
        "nosymfollow" => (MountFlags::NOSYMFOLLOW, NONE),
        "nodiratime" => (MountFlags::NODIRATIME, NONE),
        "diratime" => (NONE, MountFlags::NODIRATIME),
        "noatime" => (MountFlags::NOATIME, TIMES),
        "strictatime" => (MountFlags::STRICTATIME, TIMES),
        "relatime" => (MountFlags::RELATIME, TIMES),
        "atime" => (NONE, MountFlags::NOATIME),
        "norelatime" => (NONE, MountFlags::RELATIME),
        _ => return None,
    })
}

/// All that these flags ask for, and nothing else. The last one counts.
pub(super) fn bits(flags: &[String]) -> MountFlags {
    let known = flags.iter().filter_map(|flag| meaning(flag));
    let bits = known.fold(MountFlags::empty(), |bits, (set, clear)| bits.difference(clear) | set);
    // Who asks for none has the kernel's own way; a bind, otherwise, that of its source.
    if bits.intersects(TIMES) { bits } else { bits | MountFlags::RELATIME }
}

/// Mounts a device.
pub(super) fn device(
    device: &Path,
    target: &Path,
    kind: &str,
    shared: MountFlags,
    data: &CStr,
    own: MountFlags,
) -> io::Result<()> {
    let make = |place: &Path| mount(device, place, kind, shared, data);
    // To mount(2), read-only is the filesystem as a whole, for all targets to come; and an old kernel passes over the
    // other without a word.
    if !own.intersects(MountFlags::RDONLY | MountFlags::NOSYMFOLLOW) {
        return Ok(mount(device, target, kind, shared | own, data)?);
    }
    match apart(&make).and_then(|tree| attach(&tree, target, own)) {
        Err(error) if is_old(&error) => {
            make(target)?;
            remount(target, own)
        }
        done => done,
    }
}

/// Shows one place at another too.
pub(super) fn bind(source: &Path, target: &Path, own: MountFlags) -> io::Result<()> {
    let tree = open_tree(CWD, source, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC);
    match tree.map_err(io::Error::from).and_then(|tree| attach(&tree, target, own)) {
        Err(error) if is_old(&error) => {
            mount_bind(source, target)?;
            remount(target, own)
        }
        done => done,
    }
}

/// Whether the kernel does not have these calls (before Linux 5.2 and 5.12), or a call one of the flags (5.14).
fn is_old(error: &io::Error) -> bool {
    [Errno::NOSYS, Errno::INVAL].iter().any(|old| error.raw_os_error() == Some(old.raw_os_error()))
}

/// Those of them that the kernel tells in its list: that it has its own way with times, or a strict one, it does not.
pub(super) fn told(flags: &[String]) -> MountFlags {
    bits(flags).difference(MountFlags::RELATIME | MountFlags::STRICTATIME)
}

/// In two steps, then.
fn remount(target: &Path, own: MountFlags) -> io::Result<()> {
    let set = if own.contains(MountFlags::NOSYMFOLLOW) {
        Err(io::Error::other("nosymfollow needs Linux 5.14"))
    } else {
        mount_remount(target, MountFlags::BIND | own, c"").map_err(io::Error::from)
    };
    // What is there is not what was asked for.
    set.inspect_err(|_| {
        let _ = unmount(target, UnmountFlags::NOFOLLOW);
    })
}

/// A mount that is nowhere yet, made where nobody else sees it.
fn apart(make: &(dyn Fn(&Path) -> rustix::io::Result<()> + Sync)) -> io::Result<OwnedFd> {
    alone(|place| {
        make(place)?;
        let tree = open_tree(CWD, place, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC);
        unmount(place, UnmountFlags::empty())?;
        Ok(tree?)
    })
}

/// Does something on a thread with mounts of its own, of which nobody else sees any and which end with it. The host's
/// go there when they go on the host: what is unmounted is not held.
fn alone<T: Send>(act: impl FnOnce(&Path) -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            // SAFETY: the view of the file system is unshared, no memory and no descriptors.
            #[expect(unsafe_code)]
            unsafe {
                rustix::thread::unshare_unsafe(
                    rustix::thread::UnshareFlags::FS | rustix::thread::UnshareFlags::NEWNS,
                )?;
            }
            let follow = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", follow)?;
            act(Path::new(PLACE))
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    })
}

/// Does something with a filesystem that is mounted for nobody else.
pub(super) fn mounted_alone(
    device: &Path,
    kind: &str,
    shared: MountFlags,
    data: &CStr,
    act: impl FnOnce(&Path) -> io::Result<()> + Send,
) -> io::Result<()> {
    alone(|place| {
        mount(device, place, kind, shared, data)?;
        let done = act(place);
        unmount(place, UnmountFlags::empty())?;
        done
    })
}

/// The kernel's names for options in `mount_setattr(2)`, which differ from those of `mount(2)`.
const ATTRIBUTES: [(MountFlags, u64); 8] = [
    (MountFlags::RDONLY, 0x1),
    (MountFlags::NOSUID, 0x2),
    (MountFlags::NODEV, 0x4),
    (MountFlags::NOEXEC, 0x8),
    (MountFlags::NOATIME, 0x10),
    (MountFlags::STRICTATIME, 0x20),
    (MountFlags::NODIRATIME, 0x80),
    (MountFlags::NOSYMFOLLOW, 0x20_0000),
];

/// All of them, and what else there is of times.
const ALL_ATTRIBUTES: u64 = 0x20_00ff;

/// Gives a mount that is nowhere yet exactly these options, and its place.
fn attach(tree: &OwnedFd, target: &Path, own: MountFlags) -> io::Result<()> {
    /// The kernel's `struct mount_attr`.
    #[repr(C)]
    struct Asked {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    let set = ATTRIBUTES.iter().filter(|(flag, _)| own.contains(*flag)).map(|(_, attribute)| attribute).sum();
    let asked = Asked { set, clear: ALL_ATTRIBUTES, propagation: 0, user_namespace: 0 };
    // SAFETY: the kernel reads an empty string and as many bytes of the structure as it has, during the call.
    #[expect(unsafe_code)]
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const asked,
            size_of::<Asked>(),
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
    Ok(move_mount(tree, c"", CWD, target, flags)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::OWN;

    fn of(flags: &[&str]) -> MountFlags {
        bits(&flags.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn no_flag_of_one_mount_is_dropped() {
        for flag in OWN {
            let (set, clear) = meaning(flag).unwrap_or_else(|| panic!("{flag} means nothing"));
            assert!(!(set | clear).is_empty(), "{flag}");
        }
        assert!(of(&["nosymfollow"]).contains(MountFlags::NOSYMFOLLOW));
    }

    #[test]
    fn whoever_asks_for_nothing_gets_the_kernels_own_way_and_the_last_flag_counts() {
        assert_eq!(of(&[]), MountFlags::RELATIME);
        assert_eq!(of(&["ro", "nosuid"]), MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::RELATIME);
        assert_eq!(of(&["noatime"]), MountFlags::NOATIME);
        assert_eq!(of(&["noatime", "strictatime"]), MountFlags::STRICTATIME);
        assert_eq!(of(&["noatime", "atime"]), MountFlags::RELATIME);
        assert_eq!(of(&["nosuid", "noexec", "suid"]), MountFlags::NOEXEC | MountFlags::RELATIME);
        assert_eq!(of(&["nodiratime"]), MountFlags::NODIRATIME | MountFlags::RELATIME);
    }

    #[test]
    fn what_is_asked_for_is_compared_with_what_the_kernel_tells() {
        let told = |flags: &[&str]| told(&flags.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>());
        for (asked, mounted, is_same) in [
            (&[][..], &["rw", "relatime"][..], true),
            (&["strictatime"], &["rw"], true),
            (&["nosuid", "suid"], &["rw", "relatime"], true),
            (&["ro", "noatime", "nodev"], &["ro", "nodev", "noatime"], true),
            (&["nosuid"], &["rw", "relatime"], false),
            (&[], &["rw", "nosuid", "relatime"], false),
            (&["noatime"], &["rw", "relatime"], false),
        ] {
            assert_eq!(told(asked) == told(mounted), is_same, "{asked:?} {mounted:?}");
        }
    }

    #[test]
    fn whatever_can_be_asked_for_has_a_name_in_both_calls() {
        let named = ATTRIBUTES.iter().fold(MountFlags::RELATIME, |all, (flag, _)| all | *flag);
        for flag in OWN {
            assert!(named.contains(of(&[flag])), "{flag}");
        }
        assert!(ATTRIBUTES.iter().all(|(_, attribute)| attribute & ALL_ATTRIBUTES == *attribute));
    }
}
