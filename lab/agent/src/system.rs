//! Process 1: makes a Linux host of the root image, then adopts orphans for ever.

use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, MountPropagationFlags, mount_bind, mount_change};
use rustix::process::WaitOptions;

use crate::Result;
use crate::cmdline::Cmdline;
use crate::initramfs::{AGENT, image, mount};

/// What must outlive a power cut, if the guest has a state disk.
const STATE: [&str; 3] = ["etc/lvm", "var/lib/containerd", "var/lib/kubelet"];

pub(crate) fn start() -> Result<()> {
    let line = Cmdline::read()?;
    mounts(&line)?;
    rustix::system::sethostname(line.name.as_bytes())?;
    fs::write("/etc/hostname", format!("{}\n", line.name))?;
    fs::write("/etc/hosts", format!("127.0.0.1 localhost {}\n", line.name))?;
    network(&line)?;
    if line.state {
        state(&line)?;
    }
    lvm_policy(&line)?;
    if line.udev {
        udev()?;
    }
    if line.dmeventd {
        command("dmeventd", &[])?;
    }
    if has_data_disk()? {
        // What lvm2-activation does on a host without event activation. A VG with a missing PV makes it fail;
        // that is for the test to see, not for the boot.
        let _ = lvm(&line, &["vgchange", "-aay"]);
    }
    let mut server = Command::new(AGENT);
    server.arg("serve").env_clear().env("PATH", PATH).env("HOME", "/root").env("LANG", "C.UTF-8");
    if !line.udev {
        server.env("DM_DISABLE_UDEV", "1");
    }
    let server = server.spawn()?;
    let server = i32::try_from(server.id())?;
    loop {
        if let Some((pid, _)) = rustix::process::wait(WaitOptions::empty())?
            && pid.as_raw_nonzero().get() == server
        {
            return Err("the part that serves the lab has ended".into());
        }
    }
}

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/lab/bin";

fn mounts(line: &Cmdline) -> Result<()> {
    let plain = MountFlags::empty();
    mount("run", "/run", "tmpfs", plain, Some(c"mode=0755"))?;
    mount("tmp", "/tmp", "tmpfs", plain, Some(c"mode=1777"))?;
    for (kind, target, options) in [
        ("devpts", "/dev/pts", Some(c"mode=0620,ptmxmode=0666")),
        ("tmpfs", "/dev/shm", Some(c"mode=1777")),
        ("cgroup2", "/sys/fs/cgroup", None),
    ] {
        fs::create_dir_all(target)?;
        mount(kind, target, kind, plain, options)?;
    }
    for directory in ["/run/lock", "/run/lvm", "/lab", "/opt/lab"] {
        fs::create_dir_all(directory)?;
    }
    match &line.user_mode {
        Some(user_mode) => {
            let version = Path::new(&user_mode.drivers).file_name().ok_or("the drivers have no version")?;
            let drivers = Path::new("/usr/lib/modules").join(version);
            fs::create_dir_all(&drivers)?;
            mount_of_machine(&user_mode.share, Path::new("/lab"))?;
            clock_speed()?;
            mount_of_machine(&user_mode.drivers, &drivers)?;
        }
        None => {
            mount("debugfs", "/sys/kernel/debug", "debugfs", plain, None)?;
            mount("tracefs", "/sys/kernel/tracing", "tracefs", plain, None)?;
            let options = c"trans=virtio,version=9p2000.L,msize=512000,cache=loose";
            mount("lab", "/lab", "9p", MountFlags::RDONLY, Some(options))?;
        }
    }
    if let Some(programs) = image(line, "lab-programs")? {
        mount(programs, "/opt/lab", "ext4", MountFlags::RDONLY, None)?;
    }
    mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC)?;
    Ok(())
}

/// Mounts a directory of the machine whose program this kernel is.
fn mount_of_machine(directory: &str, target: &Path) -> Result<()> {
    let directory = CString::new(directory)?;
    mount("machine", target, "hostfs", MountFlags::RDONLY, Some(directory.as_c_str()))
}

/// The kubelet wants to know the processor's clock, which a kernel in user mode does not tell.
fn clock_speed() -> Result<()> {
    let known = fs::read_to_string("/proc/cpuinfo")?;
    fs::write("/run/cpuinfo", format!("{}\ncpu MHz\t\t: 1000.000\n\n", known.trim_end()))?;
    mount_bind("/run/cpuinfo", "/proc/cpuinfo")?;
    Ok(())
}

fn network(line: &Cmdline) -> Result<()> {
    let mut batch = "link set lo up\n".to_owned();
    if line.user_mode.is_some() {
        batch += "link set vec0 name eth0\n";
    }
    if let Some(address) = &line.address {
        batch += &format!("link set eth0 up\naddress add {address}/16 dev eth0\n");
        batch += &format!("route add default via {}\n", line.gateway);
    }
    let mut ip = Command::new("/usr/sbin/ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn()?;
    ip.stdin.take().ok_or("ip has no input")?.write_all(batch.as_bytes())?;
    if !ip.wait()?.success() {
        return Err("the network could not be set up".into());
    }
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    Ok(())
}

fn state(line: &Cmdline) -> Result<()> {
    let disk = image(line, "lab-state")?.ok_or("the state disk is missing")?;
    fs::create_dir_all("/state")?;
    mount(disk, "/state", "ext4", MountFlags::NOATIME, None)?;
    for directory in STATE {
        let (kept, here) = (Path::new("/state").join(directory), Path::new("/").join(directory));
        fs::create_dir_all(&here)?;
        // Written under another name first: a copy cut off in the middle must not count.
        if !kept.exists() {
            let parent = kept.parent().ok_or("a state directory has a parent")?;
            fs::create_dir_all(parent)?;
            let (from, half) = (here.to_string_lossy(), format!("{}.half", kept.display()));
            if Path::new(&half).exists() {
                fs::remove_dir_all(&half)?;
            }
            command("cp", &["-a", &from, &half])?;
            rustix::fs::sync();
            fs::rename(&half, &kept)?;
        }
        mount_bind(&kept, &here)?;
    }
    Ok(())
}

/// Marks the lines of ours in `lvm.conf`, so that a second boot does not add them again.
const OURS: &str = "# from the lab";

fn lvm_policy(line: &Cmdline) -> Result<()> {
    let path = Path::new("/etc/lvm/lvm.conf");
    let mut text = fs::read_to_string(path)?;
    if text.contains(OURS) {
        return Ok(());
    }
    let bit = u8::from;
    text += &format!(
        "\n{OURS}\nactivation {{ monitoring = {} }}\ndevices {{ use_devicesfile = {} }}\n",
        bit(line.dmeventd),
        bit(line.devices_file)
    );
    fs::write(path, text)?;
    if line.devices_file {
        fs::create_dir_all("/etc/lvm/devices")?;
        fs::write("/etc/lvm/devices/system.devices", "VERSION=1.1.1\n")?;
    }
    Ok(())
}

fn udev() -> Result<()> {
    command("/lib/systemd/systemd-udevd", &["--daemon"])?;
    command("udevadm", &["trigger", "--action=add", "--subsystem-match=block", "--subsystem-match=net"])?;
    command("udevadm", &["settle", "--timeout=60"])
}

fn has_data_disk() -> Result<bool> {
    for entry in fs::read_dir("/sys/block")? {
        if entry?.file_name().to_string_lossy().starts_with("sd") {
            return Ok(true);
        }
    }
    Ok(false)
}

fn lvm(line: &Cmdline, arguments: &[&str]) -> Result<()> {
    let mut lvm = Command::new("/usr/sbin/lvm");
    lvm.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if !line.udev {
        lvm.env("DM_DISABLE_UDEV", "1");
    }
    lvm.status()?;
    Ok(())
}

fn command(program: &str, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).env("PATH", PATH);
    let status = command.status().map_err(|error| format!("{program}: {error}"))?;
    if !status.success() {
        return Err(format!("{program}: {status}").into());
    }
    Ok(())
}
