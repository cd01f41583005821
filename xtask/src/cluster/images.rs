//! Container images made without a registry: one layer, in the form that `docker save` writes and containerd imports.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// The file with the lab's own images.
pub(crate) const OWN: &str = "lab.tar";

/// An image to be made.
#[derive(Debug)]
pub(crate) struct Image {
    name: String,
    entries: Vec<(String, Entry)>,
    entrypoint: Vec<String>,
}

#[derive(Debug)]
enum Entry {
    File(PathBuf),
    Link(String),
    Directory,
}

impl Image {
    /// An empty image of this name.
    pub(crate) fn new(name: &str) -> Image {
        Image { name: name.to_owned(), entries: Vec::new(), entrypoint: Vec::new() }
    }

    /// With this file of this machine, executable.
    pub(crate) fn file(self, path: &str, source: &Path) -> Image {
        self.entry(path, Entry::File(source.to_owned()))
    }

    /// With this symbolic link.
    pub(crate) fn link(self, path: &str, target: &str) -> Image {
        self.entry(path, Entry::Link(target.to_owned()))
    }

    /// With this empty directory.
    pub(crate) fn directory(self, path: &str) -> Image {
        self.entry(path, Entry::Directory)
    }

    fn entry(mut self, path: &str, entry: Entry) -> Image {
        self.entries.push((path.trim_start_matches('/').to_owned(), entry));
        self
    }

    /// Started so.
    pub(crate) fn entrypoint(mut self, words: &[&str]) -> Image {
        self.entrypoint = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// All that it is made of; a file is told by its path, which in the cache names its content.
    pub(crate) fn describe(&self) -> String {
        format!("{self:?}")
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let mut layer = tar::Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o755);
            match entry {
                Entry::File(source) => {
                    let content = fs::read(source).with_context(|| source.display().to_string())?;
                    header.set_size(content.len() as u64);
                    layer.append_data(&mut header, path, content.as_slice())?;
                }
                Entry::Link(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_size(0);
                    layer.append_link(&mut header, path, target)?;
                }
                Entry::Directory => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_size(0);
                    layer.append_data(&mut header, path, std::io::empty())?;
                }
            }
        }
        Ok(layer.into_inner()?)
    }
}

/// Writes images into one archive.
pub(crate) fn write(path: &Path, images: &[Image]) -> Result<()> {
    let mut archive = tar::Builder::new(BufWriter::new(File::create(path)?));
    let mut add = |name: &str, mut content: &[u8]| -> Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        Ok(archive.append_data(&mut header, name, content.by_ref())?)
    };
    let mut manifest = Vec::new();
    for image in images {
        let layer = image.layer()?;
        let digest = sha256(&layer);
        let config = serde_json::json!({
            "architecture": "amd64", "os": "linux",
            "config": {"Entrypoint": image.entrypoint, "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
        });
        let config = serde_json::to_vec(&config)?;
        let config_name = format!("{}.json", sha256(&config));
        let layer_name = format!("{digest}.tar");
        add(&config_name, &config)?;
        add(&layer_name, &layer)?;
        manifest.push(
            serde_json::json!({"Config": config_name, "RepoTags": [image.name], "Layers": [layer_name]}),
        );
    }
    add("manifest.json", &serde_json::to_vec(&manifest)?)?;
    archive.into_inner()?.flush()?;
    Ok(())
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Programs of the static busybox that tests use in pods.
const APPLETS: [&str; 25] = [
    "sh",
    "ash",
    "cat",
    "cp",
    "dd",
    "df",
    "echo",
    "env",
    "false",
    "httpd",
    "ls",
    "md5sum",
    "mkdir",
    "mount",
    "mv",
    "nc",
    "ps",
    "rm",
    "sha256sum",
    "sleep",
    "stat",
    "sync",
    "test",
    "touch",
    "true",
];

/// The lab's own images: busybox, which also holds a pod's namespaces, and the webhook.
pub(crate) fn own(busybox: &Path, pod: &Path) -> Vec<Image> {
    let mut shell =
        Image::new("lab.lvms.io/busybox:1").file("/bin/busybox", busybox).file("/bin/lab-pod", pod);
    for applet in APPLETS {
        shell = shell.link(&format!("/bin/{applet}"), "busybox");
    }
    // A pod's first process: it waits until it is killed.
    let shell = shell.directory("/tmp").entrypoint(&["/bin/busybox", "sleep", "2147483647"]);
    let webhook = Image::new("lab.lvms.io/webhook:1")
        .file("/lab-pod", pod)
        .entrypoint(&["/lab-pod", "webhook", "/tls"]);
    vec![shell, webhook]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_names_each_image_and_the_digest_of_its_layer() {
        let path = std::env::temp_dir().join(format!("lvms-image-{}.tar", std::process::id()));
        let image = Image::new("lab.lvms.io/x:1").link("/a", "b").directory("/d").entrypoint(&["/a"]);
        write(&path, &[image]).unwrap();
        let mut archive = tar::Archive::new(File::open(&path).unwrap());
        let mut files = std::collections::BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(name, content);
        }
        fs::remove_file(path).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], "lab.lvms.io/x:1");
        let layer = manifest[0]["Layers"][0].as_str().unwrap();
        assert_eq!(format!("{}.tar", sha256(&files[layer])), layer);
        let config: serde_json::Value =
            serde_json::from_slice(&files[manifest[0]["Config"].as_str().unwrap()]).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", sha256(&files[layer])));
        assert_eq!(config["config"]["Entrypoint"][0], "/a");
    }
}
