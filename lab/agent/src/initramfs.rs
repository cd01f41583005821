//! From the initramfs into the root image: drivers, an overlay over the read-only image, and on.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use rustix::mount::{MountFlags, mount_move};

use crate::Result;
use crate::cmdline::Cmdline;

/// The order in which the drivers are loaded; the lab writes this file.
const DRIVERS: &str = "/drivers/order";

/// Where the agent lies in the root.
pub(crate) const AGENT: &str = "/usr/sbin/lab-agent";

pub(crate) fn enter() -> Result<()> {
    for (kind, target) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        fs::create_dir_all(target)?;
        mount(kind, target, kind, MountFlags::empty(), None)?;
    }
    let line = Cmdline::read()?;
    if line.probe {
        println!("{}", lab_protocol::agent::READY);
        rustix::system::reboot(rustix::system::RebootCommand::PowerOff)?;
    }
    for driver in fs::read_to_string(DRIVERS)?.lines() {
        load(Path::new("/drivers").join(driver).as_path())?;
    }
    let image = image(&line, "lab-root")?.ok_or("no disk with the serial lab-root")?;
    for directory in ["/image", "/top", "/system"] {
        fs::create_dir_all(directory)?;
    }
    mount(image, "/image", "ext4", MountFlags::RDONLY | MountFlags::NOATIME, None)?;
    mount("top", "/top", "tmpfs", MountFlags::NOATIME, Some(c"mode=0755,size=90%"))?;
    fs::create_dir("/top/upper")?;
    fs::create_dir("/top/work")?;
    let layers = c"lowerdir=/image,upperdir=/top/upper,workdir=/top/work";
    mount("overlay", "/system", "overlay", MountFlags::NOATIME, Some(layers))?;
    let agent = format!("/system{AGENT}");
    fs::copy("/init", &agent)?;
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755))?;
    for directory in ["dev", "proc", "sys"] {
        mount_move(format!("/{directory}"), format!("/system/{directory}"))?;
    }
    fs::remove_dir_all("/drivers")?;
    rustix::process::chdir("/system")?;
    mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    rustix::process::chdir("/")?;
    Err(Command::new(AGENT).arg("system").exec().into())
}

/// Mounts, and says what if it fails.
pub(crate) fn mount(
    source: impl AsRef<Path>,
    target: impl AsRef<Path>,
    kind: &str,
    flags: MountFlags,
    options: Option<&CStr>,
) -> Result<()> {
    let (source, target) = (source.as_ref(), target.as_ref());
    rustix::mount::mount(source, target, kind, flags, options)
        .map_err(|error| format!("{} ({kind}) on {}: {error}", source.display(), target.display()).into())
}

fn load(driver: &Path) -> Result<()> {
    let file = fs::File::open(driver).map_err(|error| format!("{}: {error}", driver.display()))?;
    // Debian up to 12 ships drivers as they are; later ones compress them and the kernel unpacks.
    const COMPRESSED: std::ffi::c_int = 4;
    let flags = if driver.extension().is_some_and(|end| end == "ko") { 0 } else { COMPRESSED };
    match rustix::system::finit_module(&file, &CString::default(), flags) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(format!("{}: {error}", driver.display()).into()),
    }
}

/// The device with this image of the lab, once the kernel has found it.
pub(crate) fn image(line: &Cmdline, name: &str) -> Result<Option<PathBuf>> {
    if let Some(user_mode) = &line.user_mode {
        let letter = user_mode.images.iter().zip('a'..='z').find(|(image, _)| *image == name);
        return Ok(letter.map(|(_, letter)| PathBuf::from(format!("/dev/ubd{letter}"))));
    }
    // Virtio disks are found before their driver's load returns; the tries are for a machine under load.
    for _ in 0..50 {
        for entry in fs::read_dir("/sys/block")? {
            let entry = entry?;
            let found = fs::read_to_string(entry.path().join("serial")).unwrap_or_default();
            if found.trim_end() == name {
                return Ok(Some(Path::new("/dev").join(entry.file_name())));
            }
        }
        if name != "lab-root" {
            return Ok(None);
        }
        sleep(Duration::from_millis(100));
    }
    Ok(None)
}
