//! The guests' kernel and root image, from the distribution's packages.
//!
//! The packages are resolved against an empty system, fetched and unpacked into the cache: nothing is installed on
//! this machine, no maintainer script runs. The few things that such scripts would do are done in [`furnish`].

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use lab_protocol::disk::{GIB, MIB};
use serde::{Deserialize, Serialize};

use super::machine;
use crate::cache::Cache;
use crate::{process, progress};

/// What a guest has beside its kernel.
const PACKAGES: [&str; 36] = [
    // what every system of the distribution has
    "?essential",
    // a host with LVM
    "udev",
    "kmod",
    "lvm2",
    "dmeventd",
    "thin-provisioning-tools",
    "mdadm",
    "multipath-tools",
    "cryptsetup-bin",
    "lvm2-lockd",
    "sanlock",
    // filesystems and disks
    "xfsprogs",
    "e2fsprogs",
    "btrfs-progs",
    "util-linux",
    "mount",
    "fdisk",
    "gdisk",
    "parted",
    "sg3-utils",
    "nvme-cli",
    "fio",
    // a Kubernetes node
    "containerd",
    "crun",
    "containernetworking-plugins",
    "iproute2",
    "busybox-static",
    // a shell for people
    "bash",
    "coreutils",
    "bsdutils",
    "procps",
    "less",
    "strace",
    "gawk",
    "grep",
    "sed",
];

/// Drivers that no guest has a use for; without them the image is half as large.
const NO_USE: [&str; 12] = [
    "drivers/gpu",
    "drivers/media",
    "drivers/net/wireless",
    "drivers/net/ethernet",
    "drivers/infiniband",
    "drivers/iio",
    "drivers/staging",
    "drivers/usb",
    "drivers/isdn",
    "sound",
    "net/bluetooth",
    "drivers/input",
];

/// Bumped when [`furnish`] changes, so that old images are not used.
const RECIPE: &str = "4";

/// A kernel with its root image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Root {
    /// The kernel.
    pub(crate) kernel: PathBuf,
    /// An ext4 image, read-only for all guests.
    pub(crate) image: PathBuf,
    /// The kernel's drivers, `…/lib/modules/<version>`.
    pub(crate) drivers: PathBuf,
    /// The static busybox, for container images.
    pub(crate) busybox: PathBuf,
}

/// The root image, made if it is not in the cache.
pub(crate) fn root(cache: &Cache) -> Result<Root> {
    let distribution = Distribution::of_this_machine()?;
    let inputs = [RECIPE, &distribution.id, &distribution.version, &PACKAGES.join(" "), &NO_USE.join(" ")];
    let entry = cache.entry("guest-root", &inputs, |path| {
        cache.require_space(6 * GIB)?;
        make(path, &distribution)
    })?;
    let version = only_directory(&entry.join("modules"))?;
    Ok(Root {
        kernel: entry.join("vmlinuz"),
        image: entry.join("root.img"),
        drivers: version,
        busybox: entry.join("busybox"),
    })
}

/// Whose packages they are.
pub(super) struct Distribution {
    id: String,
    pub(super) version: String,
    kernel: &'static str,
}

impl Distribution {
    pub(super) fn of_this_machine() -> Result<Distribution> {
        let text = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
        let field = |key: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            value.unwrap_or_default().trim_matches('"').to_owned()
        };
        let id = field("ID");
        let kernel = match id.as_str() {
            "debian" => "linux-image-amd64",
            "ubuntu" => "linux-image-generic",
            other => bail!(
                "guests are made from Debian's or Ubuntu's packages, and this is {other}: use a container"
            ),
        };
        Ok(Distribution { id, version: field("VERSION_CODENAME"), kernel })
    }
}

fn make(entry: &Path, distribution: &Distribution) -> Result<()> {
    let (archives, tree) = (entry.join("archives"), entry.join("tree"));
    let step = progress::step("fetching the guests' packages");
    fetch(&archives, distribution.kernel)?;
    step.done();
    let step = progress::step("unpacking the guests' root");
    unpack(&archives, &tree, &step)?;
    fs::remove_dir_all(&archives)?;
    furnish(&tree)?;
    let version = only_directory(&tree.join("usr/lib/modules"))?;
    let version = version.file_name().context("a kernel version")?.to_owned();
    let kernel = tree.join("boot").join(format!("vmlinuz-{}", version.to_string_lossy()));
    fs::rename(&kernel, entry.join("vmlinuz")).with_context(|| kernel.display().to_string())?;
    fs::remove_dir_all(tree.join("boot"))?;
    fs::create_dir(tree.join("boot"))?;
    fs::copy(tree.join("bin/busybox"), entry.join("busybox"))?;
    step.done();
    let step = progress::step("making the root image");
    image(&tree, &entry.join("root.img"), 64 * MIB)?;
    fs::create_dir(entry.join("modules"))?;
    fs::rename(tree.join("usr/lib/modules").join(&version), entry.join("modules").join(&version))?;
    fs::remove_dir_all(&tree)?;
    step.done();
    Ok(())
}

fn fetch(archives: &Path, kernel: &str) -> Result<()> {
    machine::apt_update()?;
    fs::create_dir_all(archives.join("partial"))?;
    let status = archives.join("status");
    fs::write(&status, "")?;
    let mut apt = process::program("apt-get");
    apt.args(["install", "--yes", "--download-only", "--no-install-recommends"])
        .args(["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root"])
        .arg("-o")
        .arg(format!("Dir::State::status={}", status.display()))
        .arg("-o")
        .arg(format!("Dir::Cache::archives={}", archives.display()))
        .arg(kernel)
        .args(PACKAGES);
    process::run(&mut apt)?;
    Ok(())
}

fn unpack(archives: &Path, tree: &Path, step: &progress::Step) -> Result<()> {
    for directory in ["bin", "sbin", "lib", "lib64"] {
        fs::create_dir_all(tree.join("usr").join(directory))?;
        symlink(format!("usr/{directory}"), tree.join(directory))?;
    }
    let packages: Vec<PathBuf> = files(archives)?.into_iter().filter(|path| has_end(path, "deb")).collect();
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(package) = packages.get(next.fetch_add(1, Ordering::Relaxed)) {
            step.note(format!("{} of {}", next.load(Ordering::Relaxed).min(packages.len()), packages.len()));
            extract(package, tree)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        work()?;
        other.join().map_err(|_| anyhow::anyhow!("a thread that unpacks has panicked"))?
    })
}

/// `dpkg-deb --extract` would replace the links `/bin`, `/lib` and so on by directories.
pub(super) fn extract(package: &Path, tree: &Path) -> Result<()> {
    let mut content =
        process::program("dpkg-deb").arg("--fsys-tarfile").arg(package).stdout(Stdio::piped()).spawn()?;
    let pipe = content.stdout.take().context("a piped child has an output")?;
    let mut tar = process::program("tar");
    tar.args(["--extract", "--preserve-permissions", "--keep-directory-symlink", "--directory"]).arg(tree);
    let unpacked = tar.stdin(pipe).output()?;
    if !content.wait()?.success() || !unpacked.status.success() {
        bail!(
            "{} cannot be unpacked: {}",
            package.display(),
            String::from_utf8_lossy(&unpacked.stderr).trim()
        );
    }
    Ok(())
}

/// What the packages' scripts would have done, as far as a guest needs it.
fn furnish(tree: &Path) -> Result<()> {
    let accounts = tree.join("usr/share/base-passwd");
    fs::copy(accounts.join("passwd.master"), tree.join("etc/passwd"))?;
    fs::copy(accounts.join("group.master"), tree.join("etc/group"))?;
    link(tree, "usr/bin/awk", "gawk")?;
    link(tree, "etc/mtab", "../proc/self/mounts")?;
    fs::write(tree.join("etc/machine-id"), "")?;
    fs::write(tree.join("etc/resolv.conf"), "")?;
    for directory in [
        "lab",
        "state",
        "opt/lab",
        "etc/cni/net.d",
        "var/lib/kubelet",
        "var/lib/containerd",
        "root",
        "dev",
        "proc",
        "sys",
        "run",
        "tmp",
        "mnt",
    ] {
        fs::create_dir_all(tree.join(directory))?;
    }
    for directory in ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/cache/apt"]
    {
        remove(&tree.join(directory))?;
    }
    let drivers = only_directory(&tree.join("usr/lib/modules"))?;
    for directory in NO_USE {
        remove(&drivers.join("kernel").join(directory))?;
    }
    let version = drivers.file_name().context("a kernel version")?;
    process::run(process::program("chroot").arg(tree).arg("/sbin/ldconfig"))?;
    process::run(process::program("chroot").arg(tree).arg("/sbin/depmod").arg(version))?;
    Ok(())
}

fn link(tree: &Path, name: &str, target: &str) -> Result<()> {
    let path = tree.join(name);
    if fs::symlink_metadata(&path).is_ok() {
        fs::remove_file(&path)?;
    }
    symlink(target, &path).with_context(|| path.display().to_string())
}

fn remove(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    Ok(())
}

/// An ext4 image with the contents of `tree` and `spare` bytes more.
pub(crate) fn image(tree: &Path, image: &Path, spare: u64) -> Result<()> {
    let used = process::run(process::program("du").args(["--summarize", "--block-size=1"]).arg(tree))?;
    let used: u64 =
        used.split_whitespace().next().unwrap_or_default().parse().context("du printed no number")?;
    let size = (used + used / 8 + spare) / 4096;
    let mut mke2fs = process::program("mke2fs");
    mke2fs.args(["-q", "-t", "ext4", "-b", "4096", "-m", "0", "-O", "^has_journal", "-d"]);
    process::run(mke2fs.arg(tree).arg(image).arg(size.to_string()))?;
    Ok(())
}

fn files(directory: &Path) -> Result<BTreeSet<PathBuf>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
}

fn has_end(path: &Path, end: &str) -> bool {
    path.extension().is_some_and(|found| found == end)
}

pub(super) fn only_directory(directory: &Path) -> Result<PathBuf> {
    let entries = files(directory).with_context(|| directory.display().to_string())?;
    match entries.into_iter().collect::<Vec<_>>().as_slice() {
        [only] => Ok(only.clone()),
        others => bail!("{} holds {} entries instead of one", directory.display(), others.len()),
    }
}
