//! The initramfs: the agent as `/init`, and the drivers that lead to the root image.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

/// What the agent needs before it has the root image; their dependencies come along.
const DRIVERS: [&str; 10] = [
    "crc32c_generic",
    "virtio_pci",
    "virtio_blk",
    "virtio_scsi",
    "sd_mod",
    "virtio_net",
    "9pnet_virtio",
    "9p",
    "ext4",
    "overlay",
];

/// Its name in a run's directory.
pub(crate) const NAME: &str = "initramfs";

/// Writes an initramfs with this agent and drivers of this kernel.
pub(crate) fn write(path: &Path, agent: &Path, drivers: &Path) -> Result<()> {
    let order = load_order(&fs::read_to_string(drivers.join("modules.dep"))?, &DRIVERS)?;
    let mut archive = Archive(BufWriter::new(File::create(path)?), 0);
    for directory in ["dev", "proc", "sys", "drivers"] {
        archive.add(directory, 0o040_755, &[])?;
    }
    archive.add("init", 0o100_755, &fs::read(agent).with_context(|| agent.display().to_string())?)?;
    // The kernel opens its first console before the agent has mounted /dev.
    archive.add_console()?;
    let mut names = String::new();
    for driver in order {
        let name = driver.rsplit('/').next().unwrap_or(&driver);
        names += &format!("{name}\n");
        archive.add(&format!("drivers/{name}"), 0o100_644, &fs::read(drivers.join(&driver))?)?;
    }
    archive.add("drivers/order", 0o100_644, names.as_bytes())?;
    archive.finish()
}

/// The files to load, each after those that it depends on. Drivers that are built in are in no list, and in no need.
fn load_order(modules_dep: &str, wanted: &[&str]) -> Result<Vec<String>> {
    let mut lines = BTreeMap::new();
    for line in modules_dep.lines() {
        let (file, dependencies) = line.split_once(':').with_context(|| format!("modules.dep: {line}"))?;
        let name = file.rsplit('/').next().unwrap_or(file);
        let name = name.split('.').next().unwrap_or(name).replace('-', "_");
        lines.insert(name, (file.to_owned(), dependencies));
    }
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        let Some((file, dependencies)) = lines.get(*name) else { continue };
        // depmod lists all dependencies, the deepest last.
        for driver in dependencies.split_whitespace().rev().chain([file.as_str()]) {
            if !order.iter().any(|known| known == driver) {
                order.push(driver.to_owned());
            }
        }
    }
    Ok(order)
}

/// A cpio archive in the form `newc`, the one the kernel reads.
struct Archive<W: Write>(W, u32);

impl<W: Write> Archive<W> {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.entry(name, mode, content, (0, 0))
    }

    fn add_console(&mut self) -> Result<()> {
        self.entry("dev/console", 0o020_600, &[], (5, 1))
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8], device: (u32, u32)) -> Result<()> {
        self.1 += 1;
        let (size, name_size) = (u32::try_from(content.len())?, u32::try_from(name.len() + 1)?);
        let fields = [self.1, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        let mut header = "070701".to_owned();
        for field in fields {
            header += &format!("{field:08x}");
        }
        header += name;
        header.push('\0');
        self.padded(header.as_bytes())?;
        self.padded(content)
    }

    fn padded(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes)?;
        self.0.write_all(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()])?;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.add("TRAILER!!!", 0, &[])?;
        self.0.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_come_after_what_they_depend_on_and_only_once() {
        let dep = "k/net/9p/9pnet_virtio.ko: k/net/9p/9pnet.ko k/virtio_ring.ko k/virtio.ko\n\
                   k/virtio.ko:\nk/virtio_ring.ko: k/virtio.ko\nk/net/9p/9pnet.ko:\n\
                   k/virtio-pci.ko.xz: k/virtio_ring.ko k/virtio.ko\n";
        let order = load_order(dep, &["virtio_pci", "built_in", "9pnet_virtio"]).unwrap();
        assert_eq!(
            order,
            [
                "k/virtio.ko",
                "k/virtio_ring.ko",
                "k/virtio-pci.ko.xz",
                "k/net/9p/9pnet.ko",
                "k/net/9p/9pnet_virtio.ko"
            ]
        );
    }

    #[test]
    fn an_archive_is_a_sequence_of_padded_newc_entries() {
        let mut bytes = Vec::new();
        let mut archive = Archive(&mut bytes, 0);
        archive.add("ab", 0o100_644, b"x").unwrap();
        archive.finish().unwrap();
        assert!(bytes.starts_with(b"070701000000010000"));
        assert_eq!(&bytes[110..120], b"ab\0\0\0\0x\0\0\0");
        assert_eq!(&bytes[120..126], b"070701");
        assert_eq!(bytes.len() % 4, 0);
    }
}
