//! Mounts, targets and probes on the host.

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::linux::Linux;
use super::process::{ProcessError, Program};
use super::{attach, crash, device};
use crate::direct::Direct;
use crate::filesystem::superblock::{self, Bytewise};
use crate::filesystem::{Content, Filesystem};
use crate::lvm::inventory::DeviceNumber;
use crate::mount::{self, Flags, Mount};
use crate::units::Bytes;

/// A tool that looks at a device answers within this, or the device does not.
const LOOK: Duration = Duration::from_secs(60);

/// What `blkid` answers when it finds nothing, which it also does for a device that it cannot open.
const NOTHING: i32 = 2;

struct Device(File);

impl Bytewise for Device {
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, at)
    }
}

impl Bytewise for Direct {
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        Direct::read_at(self, at, buffer)
    }
}

/// Why a probe has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The device cannot be read.
    #[error("{0} cannot be read")]
    Read(String, #[source] io::Error),
    /// A tool failed.
    #[error(transparent)]
    Tool(#[from] ProcessError),
    /// Two tools disagree, or one finds several things.
    #[error("what is on {0} is ambivalent: {1}")]
    Ambivalent(String, String),
}

impl Linux {
    /// All mounts of the host, with the devices on which they are, or which they are.
    pub fn mounts(&self) -> io::Result<Vec<Mount>> {
        self.on_host(|| {
            let mut mounts = mount::parse(&fs::read_to_string("/proc/thread-self/mountinfo")?);
            for mount in mounts.iter_mut().filter(|mount| mount.device.major == 0) {
                // A btrfs has a number of its own there, which no device has; a bound device node has that of /dev. What
                // others name as their source may lie where nobody answers.
                let node = match mount.filesystem.as_str() {
                    "btrfs" => Path::new(&mount.source),
                    _ if mount.is_node() => &mount.target,
                    _ => continue,
                };
                if let Ok(node) = fs::metadata(node)
                    && node.file_type().is_block_device()
                {
                    let (major, minor) = (rustix::fs::major(node.rdev()), rustix::fs::minor(node.rdev()));
                    mount.device = DeviceNumber { major, minor };
                }
            }
            Ok(mounts)
        })?
    }

    /// The number of the mount in which a place lies, or that is there; none if the place is not. What is mounted is not
    /// touched: it may not answer.
    pub fn mount_of(&self, place: &Path) -> io::Result<Option<u64>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.on_host(|| match rustix::fs::open(place, flags, rustix::fs::Mode::empty()) {
            Ok(place) => {
                let told = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", place.as_raw_fd()))?;
                let id = told.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
                id.map(Some).ok_or_else(|| io::Error::other("the kernel tells no mount of it"))
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error.into()),
        })?
    }

    /// Whether a mount is what is seen where it is.
    pub fn is_seen(&self, mount: &Mount) -> io::Result<bool> {
        Ok(self.mount_of(&mount.target)? == Some(mount.id))
    }

    /// Looks what is on a device. Only an empty answer of two tools, on a device that can be read, is "nothing".
    pub fn probe(&self, path: &Path, ours: bool) -> Result<Content, ProbeError> {
        let name = path.display().to_string();
        let cannot = |error| ProbeError::Read(name.clone(), error);
        let size = self.on_host(|| device::size(path)).and_then(|size| size).map_err(cannot)?;
        let blkid = Program::looks(["blkid", "--probe", "--output", "export", &name], LOOK);
        let finished = self.run(&blkid)?;
        match finished.status.code() {
            Some(0) => return self.look_closer(path, Content::of_blkid(&finished.text())).map_err(cannot),
            Some(NOTHING) => {}
            _ => {
                return Err(ProbeError::Ambivalent(
                    name,
                    finished.success(&blkid).err().map(|error| error.to_string()).unwrap_or_default(),
                ));
            }
        }
        let wipefs = Program::looks(["wipefs", "--noheadings", "--output", "TYPE", &name], LOOK);
        let found = self.run(&wipefs)?.success(&wipefs)?.text();
        if !found.is_empty() {
            return Err(ProbeError::Ambivalent(name, format!("blkid finds nothing, wipefs finds {found}")));
        }
        let remains = self.on_host(|| -> io::Result<Option<&'static str>> {
            let device = Device(File::open(path)?);
            // Whatever the tools say: a device whose beginning cannot be read is not empty.
            device.read_at(0, &mut [0; 4096])?;
            if ours { Ok(None) } else { superblock::remains(&device, size) }
        });
        let remains = remains.and_then(|remains| remains).map_err(cannot)?;
        Ok(remains.map_or(Content::Nothing, Content::Remains))
    }

    fn look_closer(&self, path: &Path, content: Content) -> io::Result<Content> {
        let Content::Filesystem { kind, uuid, .. } = content else { return Ok(content) };
        let known = Filesystem::named(&kind);
        let block = known.map(|known| self.superblock(path, known)).transpose()?.flatten();
        Ok(Content::Filesystem { kind, uuid, unfinished: block.is_some_and(|block| block.unfinished) })
    }

    /// The superblock of a device.
    pub fn superblock(&self, path: &Path, kind: Filesystem) -> io::Result<Option<superblock::Superblock>> {
        self.on_host(|| match kind {
            // A mounted one is not written through the cache of its device, which goes on to have what was read before.
            Filesystem::Xfs => superblock::read(&Direct::open(path)?, kind),
            Filesystem::Ext4 | Filesystem::Btrfs => superblock::read(&Device(File::open(path)?), kind),
        })?
    }

    /// The size of a device.
    pub fn device_size(&self, path: &Path) -> io::Result<Bytes> {
        self.on_host(|| device::size(path))?
    }

    /// Whether somebody has a device for himself: it is mounted, in whichever namespace.
    pub fn is_held(&self, path: &Path) -> io::Result<bool> {
        let alone = i32::try_from(OFlags::EXCL.bits()).map_err(io::Error::other)?;
        self.on_host(|| match File::options().read(true).custom_flags(alone).open(path) {
            Ok(_) => Ok(false),
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => Ok(true),
            Err(error) => Err(error),
        })?
    }

    fn effect<T: Send>(&self, what: &str, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        crash::point(what, "before");
        let done = self.on_host(act)?;
        crash::point(what, "after");
        done
    }

    /// Mounts a device. What is asked for this mount alone is not the device's: others of it may differ.
    pub fn mount(
        &self,
        device: &Path,
        target: &Path,
        kind: Filesystem,
        flags: &Flags,
        read_only: bool,
    ) -> io::Result<()> {
        let (mut bits, data) = shared(&flags.shared)?;
        if read_only {
            bits |= MountFlags::RDONLY;
        }
        let own = attach::bits(&flags.own);
        tracing::info!(device = %device.display(), target = %target.display(), kind = kind.name(), "mounts");
        self.effect("mount", || attach::device(device, target, kind.name(), bits, &data, own))
    }

    /// Shows one place at another too.
    pub fn bind(&self, source: &Path, target: &Path, own: &[String]) -> io::Result<()> {
        let own = attach::bits(own);
        tracing::info!(source = %source.display(), target = %target.display(), "binds");
        self.effect("bind", || attach::bind(source, target, own))
    }

    /// Whether a mount has these options of its own, and no others.
    pub fn is_mounted_with(own: &[String], mounted: &Mount) -> bool {
        attach::told(own) == attach::told(&mounted.options)
    }

    /// Unmounts whatever is topmost at a place.
    pub fn unmount(&self, target: &Path) -> io::Result<()> {
        tracing::info!(target = %target.display(), "unmounts");
        self.effect("unmount", || Ok(rustix::mount::unmount(target, UnmountFlags::NOFOLLOW)?))
    }

    /// Has what was written to a filesystem reach its device.
    pub fn sync(&self, target: &Path) -> io::Result<()> {
        self.on_host(|| Ok(rustix::fs::syncfs(File::open(target)?)?))?
    }

    /// Makes a directory to mount on.
    pub fn make_directory(&self, target: &Path) -> io::Result<()> {
        self.effect("mkdir", || fs::create_dir_all(target))
    }

    /// Makes a file to bind a device to.
    pub fn make_file(&self, target: &Path) -> io::Result<()> {
        self.effect("make file", || {
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            File::options().create(true).truncate(false).write(true).open(target).map(drop)
        })
    }

    /// Removes an empty directory, an empty file or a device node; what is not there is as good.
    pub fn remove_target(&self, target: &Path) -> io::Result<()> {
        self.effect("remove target", || {
            let kind = match fs::symlink_metadata(target) {
                Ok(metadata) => metadata.file_type(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            };
            if kind.is_dir() {
                fs::remove_dir(target)
            } else if kind.is_file() && fs::symlink_metadata(target)?.len() > 0 {
                Err(io::Error::other("it is a file with something in it, and not a target of ours"))
            } else if kind.is_file() || kind.is_block_device() || kind.is_char_device() || kind.is_symlink() {
                fs::remove_file(target)
            } else {
                Err(io::Error::other("it is neither a directory nor a file nor a device"))
            }
        })
    }

    /// Whether this place is a block device with this number.
    pub fn is_device(&self, target: &Path, number: DeviceNumber) -> io::Result<bool> {
        self.on_host(|| match fs::symlink_metadata(target) {
            Ok(metadata) => {
                let here = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
                Ok(metadata.file_type().is_block_device() && here == (number.major, number.minor))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        })?
    }

    /// The number of a device node; none if something else is there, or nothing.
    pub fn node_at(&self, target: &Path) -> Option<DeviceNumber> {
        let node = self.on_host(|| fs::symlink_metadata(target)).ok()?.ok()?;
        let (major, minor) = (rustix::fs::major(node.rdev()), rustix::fs::minor(node.rdev()));
        node.file_type().is_block_device().then_some(DeviceNumber { major, minor })
    }

    /// A place as the kernel tells it: links on the way to it are followed, it itself is not. A distribution may have the
    /// kubelet's directory behind one.
    pub fn real_place(&self, place: &Path) -> PathBuf {
        let real = || Some(fs::canonicalize(place.parent()?).ok()?.join(place.file_name()?));
        self.on_host(real).ok().flatten().unwrap_or_else(|| place.to_owned())
    }

    /// Sets the mode of a filesystem's root directory, on a mount that nobody else sees and that ends with this call.
    pub fn set_root_mode(&self, device: &Path, kind: Filesystem, mode: u32) -> io::Result<()> {
        let options = kind.options(false).iter().map(|option| (*option).to_owned()).collect::<Vec<_>>();
        let (bits, data) = shared(&options)?;
        self.effect("set mode", || {
            attach::mounted_alone(device, kind.name(), bits, &data, |place| {
                fs::set_permissions(place, Permissions::from_mode(mode))
            })
        })
    }

    /// How full a mounted filesystem is.
    pub fn usage(&self, target: &Path) -> io::Result<Usage> {
        let stat = self.on_host(|| rustix::fs::statvfs(target))??;
        Ok(Usage {
            bytes: (stat.f_blocks > 0).then(|| Amounts {
                total: stat.f_blocks.saturating_mul(stat.f_frsize),
                used: stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(stat.f_frsize),
                available: stat.f_bavail.saturating_mul(stat.f_frsize),
            }),
            inodes: (stat.f_files > 0).then(|| Amounts {
                total: stat.f_files,
                used: stat.f_files.saturating_sub(stat.f_ffree),
                available: stat.f_ffree,
            }),
        })
    }
}

/// How full a filesystem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub bytes: Option<Amounts>,
    /// Inodes, where the filesystem counts them.
    pub inodes: Option<Amounts>,
}

/// Of what there is a limited number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amounts {
    /// All.
    pub total: u64,
    /// Taken.
    pub used: u64,
    /// To be had by users.
    pub available: u64,
}

/// Options of the filesystem: some are bits, the others words for it.
fn shared(options: &[String]) -> io::Result<(MountFlags, CString)> {
    let mut bits = MountFlags::empty();
    let mut words = Vec::new();
    for option in options {
        bits |= match option.as_str() {
            "sync" => MountFlags::SYNCHRONOUS,
            "dirsync" => MountFlags::DIRSYNC,
            "lazytime" => MountFlags::LAZYTIME,
            "silent" => MountFlags::SILENT,
            "async" | "nolazytime" | "loud" => MountFlags::empty(),
            _ => {
                words.push(option.as_str());
                MountFlags::empty()
            }
        };
    }
    Ok((bits, CString::new(words.join(",")).map_err(io::Error::other)?))
}

/// Whether an error means that nothing is mounted there.
pub(crate) fn is_not_mounted(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_with_categories_reaches_the_kernel_in_one_piece_and_flags_of_the_call_as_bits() {
        let context = "context=\"system_u:object_r:container_file_t:s0:c1,c2\"";
        let options = ["sync", context, "lazytime", "data=journal", "async"].map(str::to_owned);
        let (bits, words) = shared(&options).unwrap();
        assert_eq!(bits, MountFlags::SYNCHRONOUS | MountFlags::LAZYTIME);
        assert_eq!(words.to_str().unwrap(), format!("{context},data=journal"));
    }
}
