//! The program that measures, on this machine's own kernel, with the guests' lvm2 and loop devices of its own.
//!
//! It sees no disk of the machine: its `/dev` holds nothing but those loop devices. Volumes are inactive, so the kernel
//! need not have device-mapper. Mounts are gone with their namespace, loop devices with whoever has them open. The
//! driver has its control group, as it has on a host, below the one in which this runs.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use lab_protocol::disk::GIB;
use lab_protocol::figures::Figure;

use crate::lab::Lab;
use crate::process;

const LIMIT: Duration = Duration::from_secs(900);

/// Run with the root image, the share, and the name and minor number of two loop devices, in namespaces of its own.
const SCRIPT: &str = r#"
set -e
image=$1 share=$2 ours=$3 bare=$5
mkdir -p native
mount -t tmpfs tmpfs native
mkdir native/image native/upper native/work native/tree
mount -o loop,ro "$image" native/image
mount -t overlay -o lowerdir=native/image,upperdir=native/upper,workdir=native/work overlay native/tree
mount --bind "$share" native/tree/lab
cd native/tree
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup || true
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs dev
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/urandom c 1 9
mknod -m 666 dev/random c 1 8
mknod -m 600 "dev/$ours" b 7 "$4"
mknod -m 600 "dev/$bare" b 7 "$6"
cat >> etc/lvm/lvm.conf <<END
global { activation = 0 }
devices { use_devicesfile = 0 global_filter = [ "a|^/dev/$ours$|", "a|^/dev/$bare$|", "r|.*|" ] }
END
cat > run/lvmd.yaml <<END
device-classes:
  - {name: thick, volume-group: vg, default: true, spare-gb: 0}
END
chroot . vgcreate --quiet --metadatasize 16m vg "/dev/$ours" >&2
chroot . vgcreate --quiet --metadatasize 16m bare "/dev/$bare" >&2
ended=0
chroot . /lab/bench native || ended=$?
rmdir sys/fs/cgroup/lvms 2>/dev/null || true
exit $ended
"#;

/// Measures.
pub(super) fn run(lab: &Lab) -> Result<Vec<Figure>> {
    let ours = LoopDisk::attach(lab.path("native-ours.img"))?;
    let bare = LoopDisk::attach(lab.path("native-bare.img"))?;
    let mut unshare = process::program("unshare");
    unshare
        .args(["--mount", "--cgroup", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", SCRIPT, "sh"])
        .args([&lab.root.image, &lab.share])
        .args([&ours.name, &ours.minor, &bare.name, &bare.minor]);
    Ok(Figure::all(&process::run_within(&mut unshare, &[], LIMIT)?)?)
}

/// A loop device on a sparse file.
struct LoopDisk {
    name: String,
    minor: String,
    file: PathBuf,
    /// The last to close it detaches it, however this process ends.
    _open: File,
}

impl LoopDisk {
    fn attach(file: PathBuf) -> Result<LoopDisk> {
        File::create(&file)?.set_len(64 * GIB)?;
        let losetup =
            |words: &[&str], path: &Path| process::run(process::program("losetup").args(words).arg(path));
        let device = losetup(&["--find", "--show"], &file)?;
        let device = Path::new(device.trim());
        let open = File::open(device);
        // While it is open, this only marks it.
        losetup(&["--detach"], device)?;
        let name = device.file_name().context("a loop device has a name")?.to_string_lossy().into_owned();
        let minor = rustix::fs::minor(fs::metadata(device)?.rdev()).to_string();
        Ok(LoopDisk { name, minor, file, _open: open? })
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}
