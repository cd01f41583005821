//! What tests of the engine have in common: a group with a pool, and volumes in it.

#![allow(dead_code, reason = "each test uses some of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lab_test::{Lab, Result, run};
use lvms_host::desired::{ClassKind, DeviceClass};
use lvms_host::facts::Facts;
use lvms_host::filesystem::Filesystem;
use lvms_host::names::{LvName, VgName, VolumePath};
use lvms_host::plan::volume::Wish;
use lvms_host::publish::Access;
use lvms_host::runner::{Linux, Options};
use lvms_host::units::Bytes;
use lvms_host::volumes::Volumes;
use uuid::Uuid;

pub(crate) type Engine = Arc<Volumes<Linux>>;

/// A group `vg` on all disks, with a pool, and the engine on it.
pub(crate) fn engine(lab: &Lab) -> Result<Engine> {
    let mut words = vec!["vg"];
    words.extend(lab.disks().iter().map(String::as_str));
    run("vgcreate", words)?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "700m", "vg"])?;
    open()
}

/// The engine on a group `vg` that is there.
pub(crate) fn open() -> Result<Engine> {
    Ok(Volumes::open(Arc::new(Linux::new(Options::default())?), &[&VgName::parse("vg")?])?)
}

/// A wish for a new volume of a class, with the class's own options.
pub(crate) fn wish<'a>(class: &'a DeviceClass, name: &str, size: Bytes, block: bool) -> Result<Wish<'a>> {
    let fsid = (!block).then(Uuid::new_v4);
    Ok(Wish {
        name: LvName::parse(name)?,
        class,
        options: class.options.clone(),
        size,
        limit: None,
        facts: Facts { name: Some(name.to_owned()), block, fsid, ..Facts::default() },
        source: None,
    })
}

pub(crate) fn class(thin: bool) -> Result<DeviceClass> {
    let kind = if thin {
        ClassKind::Thin { pool: LvName::parse("pool")?, overprovision_ratio: 10.0 }
    } else {
        ClassKind::Thick
    };
    Ok(DeviceClass {
        name: "class".into(),
        group: VgName::parse("vg")?,
        default: true,
        spare: Bytes::ZERO,
        kind,
        stripe: 0,
        stripe_size: None,
        options: Vec::new(),
    })
}

pub(crate) fn path(name: &str) -> Result<VolumePath> {
    Ok(VolumePath { group: VgName::parse("vg")?, volume: LvName::parse(name)? })
}

pub(crate) fn make(engine: &Engine, name: &str, thin: bool, size: Bytes, block: bool) -> Result<VolumePath> {
    make_from(engine, name, thin, size, block, None)
}

pub(crate) fn make_from(
    engine: &Engine,
    name: &str,
    thin: bool,
    size: Bytes,
    block: bool,
    source: Option<&VolumePath>,
) -> Result<VolumePath> {
    let class = class(thin)?;
    let mut wish = wish(&class, name, size, block)?;
    wish.facts.source = source.map(|source| format!("volume:{}", source.volume));
    wish.facts.used = source.is_some();
    wish.source = source.cloned();
    engine.create(&wish, None)?;
    path(name)
}

pub(crate) fn filesystem(kind: Filesystem) -> Access {
    Access::Filesystem { kind, flags: Vec::new(), read_only: false }
}

pub(crate) fn target(name: &str) -> PathBuf {
    Path::new("/run/test").join(name)
}

pub(crate) fn publish(engine: &Engine, volume: &VolumePath, at: &str, access: &Access) -> Result<PathBuf> {
    let target = target(at);
    engine.publish(volume, &target, access, None)?;
    Ok(target)
}

/// Whoever looks at a new volume must not see what was there before.
pub(crate) fn fill_with_former_bytes(lab: &Lab) -> Result {
    for disk in lab.disks() {
        run("sh", ["-c", &format!("yes secret | dd of={disk} bs=1M iflag=fullblock oflag=direct || true")])?;
        run("wipefs", ["--all", "--quiet", disk])?;
    }
    Ok(())
}

pub(crate) fn has_only_zeros(device: &Path, from: u64, to: u64) -> Result<bool> {
    let script = format!(
        "tail -c +{} {} | head -c {} | tr -d '\\0' | head -c 1 | wc -c",
        from + 1,
        device.display(),
        to - from
    );
    Ok(run("sh", ["-c", &script])? == "0")
}

/// A filesystem that may only be read.
pub(crate) fn read_only(kind: Filesystem) -> Access {
    Access::Filesystem { kind, flags: Vec::new(), read_only: true }
}

/// The size of the filesystem that is mounted on a target.
pub(crate) fn size_of(target: &Path) -> Result<u64> {
    let blocks = run("stat", ["--file-system", "--format", "%b %S", &target.to_string_lossy()])?;
    let mut numbers = blocks.split(' ').map(|number| number.parse::<u64>());
    Ok(numbers.next().ok_or("no blocks")?? * numbers.next().ok_or("no size")??)
}
