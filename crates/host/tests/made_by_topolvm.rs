//! Volumes that TopoLVM has made, by its own commands, in our hands: thin ones, striped ones, snapshots, clones, and
//! block devices in use. No byte of them is lost.

mod stage;

use std::fs;
use std::path::Path;

use lab_test::{GIB, Lab, MIB, Needs, Result, run};
use lvms_host::filesystem::{Content, Filesystem, NotMountable};
use lvms_host::names::VgName;
use lvms_host::publish::{Access, PublishError};
use lvms_host::units::Bytes;
use stage::*;

/// TopoLVM names volumes so.
const ORIGIN: &str = "0e9b1a4e-6bd1-4c0e-8a55-0c3f7c2d9a01";
const SNAPSHOT: &str = "0e9b1a4e-6bd1-4c0e-8a55-0c3f7c2d9a02";
const CLONE: &str = "0e9b1a4e-6bd1-4c0e-8a55-0c3f7c2d9a03";

fn theirs(name: &str) -> String {
    format!("/dev/vg/{name}")
}

/// Formats a volume as TopoLVM does, and writes to it.
fn fill(name: &str, words: &str) -> Result {
    run("mkfs.ext4", ["-F", "-m0", "-q", &theirs(name)])?;
    write(name, words)
}

fn write(name: &str, words: &str) -> Result {
    let at = "/run/test/theirs";
    run("mount", ["--mkdir", &theirs(name), at])?;
    fs::write(Path::new(at).join("file"), words)?;
    run("umount", [at])?;
    Ok(())
}

fn thin_volumes_snapshots_and_clones_keep_what_was_in_them(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    run("lvcreate", ["-T", "vg/pool", "-n", ORIGIN, "-V", "67108864b", "-W", "y", "-y"])?;
    fill(ORIGIN, "then")?;
    let origin = format!("vg/{ORIGIN}");
    run("lvcreate", ["-s", "-k", "n", "-n", SNAPSHOT, &origin])?;
    run("lvchange", ["-p", "r", &theirs(SNAPSHOT)])?;
    run("lvcreate", ["-s", "-k", "n", "-n", CLONE, &origin])?;
    run("lvchange", ["-k", "n", "-a", "y", &theirs(CLONE)])?;
    write(ORIGIN, "now")?;
    write(CLONE, "copied")?;
    engine.look(&path("x")?.group)?;
    for (name, words) in [(ORIGIN, "now"), (CLONE, "copied")] {
        let at = publish(&engine, &path(name)?, name, &filesystem(Filesystem::Ext4))?;
        assert_eq!(fs::read_to_string(at.join("file"))?, words);
        engine.grow(&class(true)?, &path(name)?, Bytes::mib(128), None)?;
        engine.grow_published(&path(name)?, &at, None)?;
        assert_eq!(fs::read_to_string(at.join("file"))?, words);
        engine.unpublish(name, &at)?;
    }
    // What TopoLVM has taken is restored by us.
    let restored = make_from(&engine, "restored", true, Bytes::mib(64), false, Some(&path(SNAPSHOT)?))?;
    let at = publish(&engine, &restored, "restored", &filesystem(Filesystem::Ext4))?;
    assert_eq!(fs::read_to_string(at.join("file"))?, "then");
    engine.unpublish("restored", &at)?;
    // An origin does not take along what was made of it.
    engine.remove(&path(ORIGIN)?, None)?;
    let at = publish(&engine, &path(CLONE)?, CLONE, &filesystem(Filesystem::Ext4))?;
    assert_eq!(fs::read_to_string(at.join("file"))?, "copied");
    engine.unpublish(CLONE, &at)?;
    for name in [SNAPSHOT, CLONE, "restored"] {
        engine.remove(&path(name)?, None)?;
    }
    assert_eq!(run("lvs", ["--noheadings", "-o", "lv_name", "vg"])?, "pool");
    Ok(())
}

fn a_striped_volume_keeps_its_stripes_when_it_grows(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    run("lvcreate", ["-n", ORIGIN, "-L", "67108864b", "-W", "y", "-y", "-i", "2", "-I", "64k", "vg"])?;
    fill(ORIGIN, "theirs")?;
    engine.look(&path("x")?.group)?;
    let volume = path(ORIGIN)?;
    let at = publish(&engine, &volume, "striped", &filesystem(Filesystem::Ext4))?;
    engine.grow(&class(false)?, &volume, Bytes::mib(128), None)?;
    engine.grow_published(&volume, &at, None)?;
    assert_eq!(fs::read_to_string(at.join("file"))?, "theirs");
    let stripes = run("lvs", ["--noheadings", "-o", "stripes,stripe_size", &format!("vg/{ORIGIN}")])?;
    assert_eq!(stripes.split_whitespace().collect::<Vec<_>>(), ["2", "64.00k"], "{stripes}");
    engine.unpublish(ORIGIN, &at)?;
    engine.remove(&volume, None)?;
    Ok(())
}

fn a_block_volume_in_use_is_shown_as_it_is_and_never_formatted(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    run("lvcreate", ["-n", ORIGIN, "-L", "67108864b", "-W", "y", "-y", "vg"])?;
    run("sh", ["-c", &format!("yes theirs | head -c 4194304 > {}", theirs(ORIGIN))])?;
    engine.look(&path("x")?.group)?;
    let volume = path(ORIGIN)?;
    let bytes = |device: &str| run("sh", ["-c", &format!("head -c {} {device} | sha256sum", 64 * MIB)]);
    let before = bytes(&theirs(ORIGIN))?;
    let at = publish(&engine, &volume, "block", &Access::Block { read_only: false })?;
    assert_eq!(bytes(&at.to_string_lossy())?, before);
    engine.unpublish(ORIGIN, &at)?;
    // Nothing that blkid knows is on it, and it is not empty nevertheless.
    let lost = format!("mkfs.ext4 -q -F -b 1024 {0} && wipefs -aq {0}", theirs(ORIGIN));
    run("sh", ["-c", &lost])?;
    let refused = engine.publish(&volume, &target("fs"), &filesystem(Filesystem::Ext4), None);
    assert!(matches!(refused, Err(PublishError::NotMountable { .. })), "{refused:?}");
    engine.remove(&volume, None)?;
    Ok(())
}

fn a_volume_of_ours_is_used_when_topolvm_has_formatted_it_and_not_by_what_others_have_left(
    lab: &Lab,
) -> Result {
    let engine = engine(lab)?;
    // The copies of its superblock stay on the extents.
    run("lvcreate", ["-n", ORIGIN, "-L", "67108864b", "-W", "y", "-y", "vg"])?;
    run("mkfs.ext4", ["-q", "-F", "-b", "1024", &theirs(ORIGIN)])?;
    run("lvremove", ["-y", &format!("vg/{ORIGIN}")])?;
    engine.look(&path("x")?.group)?;
    let volume = make(&engine, CLONE, false, Bytes::mib(64), false)?;
    let found = engine.runner().probe(Path::new(&theirs(CLONE)), false)?;
    assert!(matches!(found, Content::Remains(_)), "the extents are others: {found:?}");
    assert!(engine.is_blank(&volume)?);
    fill(CLONE, "theirs")?;
    assert!(!engine.is_blank(&volume)?);
    engine.remove(&volume, None)?;
    Ok(())
}

fn volumes_of_topolvm_are_published_grown_and_removed(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let name = "0e9b1a4e-6bd1-4c0e-8a55-0c3f7c2d9a01";
    // As TopoLVM makes them, formats them and mounts them.
    run("lvcreate", ["-n", name, "-L", "335544320b", "-W", "y", "-y", "vg"])?;
    run("mkfs.xfs", ["-f", "-q", &format!("/dev/vg/{name}")])?;
    let at = target("topolvm");
    run("mount", ["--mkdir", "-o", "nouuid", &format!("/dev/vg/{name}"), &at.to_string_lossy()])?;
    fs::write(at.join("file"), "theirs")?;
    let volume = path(name)?;
    publish(&engine, &volume, "topolvm", &filesystem(Filesystem::Xfs))?;
    engine.grow(&class(false)?, &volume, Bytes::mib(640), None)?;
    engine.grow_published(&volume, &at, None)?;
    assert!(size_of(&at)? > 500 * MIB);
    assert_eq!(fs::read_to_string(at.join("file"))?, "theirs");
    engine.unpublish(name, &at)?;
    publish(&engine, &volume, "topolvm", &filesystem(Filesystem::Xfs))?;
    assert_eq!(fs::read_to_string(at.join("file"))?, "theirs");
    engine.unpublish(name, &at)?;
    // A device node of an older one's, and a target that is a bare node.
    let number = engine.runner().device(&volume.mapper_name())?.ok_or("no device")?.number;
    let (major, minor) = (number.major.to_string(), number.minor.to_string());
    fs::create_dir_all("/dev/topolvm")?;
    for node in [format!("/dev/topolvm/{name}"), "/run/test/bare".to_owned()] {
        run("mknod", [&node, "b", &major, &minor])?;
    }
    engine.unpublish(name, Path::new("/run/test/bare"))?;
    assert!(!Path::new("/run/test/bare").exists() && !Path::new("/dev/topolvm").join(name).exists());
    engine.remove(&volume, None)?;
    // Never formatted by anybody: it is ours to format.
    run("lvcreate", ["-n", name, "-L", "64m", "-W", "y", "-y", "vg"])?;
    engine.look(&VgName::parse("vg")?)?;
    publish(&engine, &volume, "topolvm", &filesystem(Filesystem::Ext4))?;
    engine.unpublish(name, &at)?;
    Ok(())
}

fn a_volume_of_ours_that_topolvm_formatted_and_filled_is_kept(lab: &Lab) -> Result {
    let engine = engine(lab)?;
    let volume = make(&engine, "v", false, Bytes::mib(320), false)?;
    run("wipefs", ["-a", "/dev/vg/v"])?;
    run("mkfs.ext4", ["-F", "-m0", "-q", "/dev/vg/v"])?;
    run("mount", ["--mkdir", "/dev/vg/v", "/run/test/v"])?;
    fs::write("/run/test/v/file", "theirs")?;
    run("umount", ["/run/test/v"])?;
    let at = publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    assert_eq!(fs::read_to_string(at.join("file"))?, "theirs");
    engine.unpublish("v", &at)?;
    let another = engine.publish(&volume, &at, &filesystem(Filesystem::Xfs), None);
    assert!(matches!(another, Err(PublishError::NotMountable { reason: NotMountable::Another { .. }, .. })));
    publish(&engine, &volume, "v", &filesystem(Filesystem::Ext4))?;
    assert_eq!(fs::read_to_string(at.join("file"))?, "theirs");
    engine.unpublish("v", &at)?;
    Ok(())
}

lab_test::main! {
    volumes_of_topolvm_are_published_grown_and_removed: Needs::disks(1, 2 * GIB).guest(),
    a_volume_of_ours_that_topolvm_formatted_and_filled_is_kept: Needs::disks(1, 2 * GIB).guest(),
    a_volume_of_ours_is_used_when_topolvm_has_formatted_it_and_not_by_what_others_have_left:
        Needs::disks(1, GIB).guest(),
    thin_volumes_snapshots_and_clones_keep_what_was_in_them: Needs::disks(1, 2 * GIB).guest(),
    a_striped_volume_keeps_its_stripes_when_it_grows: Needs::disks(2, GIB).guest(),
    a_block_volume_in_use_is_shown_as_it_is_and_never_formatted: Needs::disks(1, 2 * GIB).guest(),
}
