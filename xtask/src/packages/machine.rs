//! Programs that run on this machine itself. On Debian and Ubuntu they are installed, elsewhere named.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{process, progress};

/// A program the lab runs here, and the Debian package that has it.
struct Tool {
    program: &'static str,
    package: &'static str,
}

const TOOLS: [Tool; 7] = [
    Tool { program: "qemu-system-x86_64", package: "qemu-system-x86" },
    Tool { program: "ip", package: "iproute2" },
    Tool { program: "iptables", package: "iptables" },
    Tool { program: "unshare", package: "util-linux" },
    Tool { program: "setpriv", package: "util-linux" },
    Tool { program: "nsenter", package: "util-linux" },
    Tool { program: "mke2fs", package: "e2fsprogs" },
];

/// The oldest Go that builds what the lab needs.
const GO: (u32, u32) = (1, 25);

/// The programs that the lab runs here.
pub(crate) fn programs() -> impl Iterator<Item = &'static str> {
    TOOLS.iter().map(|tool| tool.program)
}

/// Checks that this machine can carry the lab, and installs what is missing where that is possible.
/// Go is needed for Kubernetes alone.
pub(crate) fn prepare(with_kubernetes: bool) -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("the lab runs on x86_64 and this is {}", std::env::consts::ARCH);
    }
    if !rustix::process::geteuid().is_root() {
        bail!(
            "the lab needs root for its namespaces and its network: run it with sudo, or as root in a container"
        );
    }
    if !fs::exists("/dev/net/tun")? {
        bail!("/dev/net/tun is missing: load the driver (`modprobe tun`), or give the container the device");
    }
    install_missing()?;
    if with_kubernetes { check_go() } else { Ok(()) }
}

fn install_missing() -> Result<()> {
    let mut packages: Vec<&str> =
        TOOLS.iter().filter(|tool| process::find(tool.program).is_none()).map(|tool| tool.package).collect();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    let names = packages.join(" ");
    if process::find("apt-get").is_none() {
        bail!("missing programs: install what Debian calls {names}");
    }
    let step = progress::step(format!("installing {names}"));
    apt_update()?;
    let mut apt = process::program("apt-get");
    apt.args(["install", "--yes", "--no-install-recommends"])
        .args(&packages)
        .env("DEBIAN_FRONTEND", "noninteractive");
    process::run(&mut apt).with_context(|| format!("install {names} by hand"))?;
    step.done();
    Ok(())
}

/// Reads the package lists anew.
pub(crate) fn apt_update() -> Result<()> {
    process::run(process::program("apt-get").arg("update"))?;
    Ok(())
}

fn check_go() -> Result<()> {
    let wanted =
        format!("Go {}.{} or newer is needed to build Kubernetes: install it and put it in PATH", GO.0, GO.1);
    let Some(go) = process::find("go") else { bail!("{wanted}") };
    let version = process::run(Command::new(go).args(["env", "GOVERSION"]))?;
    match parse_go_version(&version) {
        Some(found) if found >= GO => Ok(()),
        _ => bail!("{wanted} (found {})", version.trim()),
    }
}

fn parse_go_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().strip_prefix("go")?.split('.');
    let major = parts.next()?.parse().ok()?;
    let digits: String = parts.next()?.chars().take_while(char::is_ascii_digit).collect();
    Some((major, digits.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_compare_by_number() {
        assert_eq!(parse_go_version("go1.26.8\n"), Some((1, 26)));
        assert_eq!(parse_go_version("go1.9"), Some((1, 9)));
        assert_eq!(parse_go_version("go1.26rc1"), Some((1, 26)));
        assert_eq!(parse_go_version("devel"), None);
        assert!((1, 9) < GO && (1, 26) >= GO);
    }
}
