//! The three filesystems: made, mounted, grown while mounted.

use std::fs;

use lab_test::{GIB, Lab, Needs, Result, run};

/// Makes a filesystem on a volume, mounts it, writes, grows both, and reads back.
fn make_mount_and_grow(lab: &Lab, make: &[&str], grow: impl Fn(&str, &str) -> Result) -> Result {
    let place = lab.state().join("mount");
    fs::create_dir_all(&place)?;
    let place = place.to_str().ok_or("a path is text")?;
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-n", "volume", "-L", "512M", "vg"])?;
    let device = "/dev/vg/volume";
    run(make[0], make[1..].iter().chain(&[device]))?;
    run("mount", [device, place])?;
    let file = format!("{place}/file");
    fs::write(&file, "kept")?;
    let before = size(place)?;
    run("lvextend", ["-L", "1G", "vg/volume"])?;
    grow(device, place)?;
    let after = size(place)?;
    assert!(after > before + 400 * 1024, "grew from {before} to {after} KiB");
    run("umount", [place])?;
    run("mount", [device, place])?;
    assert_eq!(fs::read_to_string(&file)?, "kept");
    run("umount", [place])?;
    Ok(())
}

fn size(place: &str) -> Result<u64> {
    let text = run("df", ["--output=size", "--block-size=1K", place])?;
    Ok(text.lines().last().unwrap_or_default().trim().parse()?)
}

fn xfs_is_made_mounted_and_grown(lab: &Lab) -> Result {
    make_mount_and_grow(lab, &["mkfs.xfs", "-q"], |_, place| run("xfs_growfs", [place]).map(drop))
}

fn ext4_is_made_mounted_and_grown(lab: &Lab) -> Result {
    make_mount_and_grow(lab, &["mkfs.ext4", "-q"], |device, _| run("resize2fs", [device]).map(drop))
}

fn btrfs_is_made_mounted_and_grown(lab: &Lab) -> Result {
    make_mount_and_grow(lab, &["mkfs.btrfs", "-q"], |_, place| {
        run("btrfs", ["filesystem", "resize", "max", place]).map(drop)
    })
}

lab_test::main! {
    xfs_is_made_mounted_and_grown: Needs::disks(1, 2 * GIB),
    ext4_is_made_mounted_and_grown: Needs::disks(1, 2 * GIB),
    btrfs_is_made_mounted_and_grown: Needs::disks(1, 2 * GIB),
}
