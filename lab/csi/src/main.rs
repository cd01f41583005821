//! What a kubelet, another client of CSI or a client of lvmd asks of a driver, asked by hand.

mod lvmd;

use std::path::Path;

use lab_csi::{Access, Client, Error};

const USAGE: &str = "use: lab-csi publish|unpublish SOCKET VOLUME PATH, create SOCKET NAME CLASS BYTES, grow SOCKET \
    VOLUME BYTES, snapshot SOCKET NAME VOLUME, delete|delete-snapshot SOCKET ID, or lvmd SOCKET CLASS";

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [act, socket, rest @ ..] = &words[..] else { return Err(USAGE.into()) };
    if let ("lvmd", [class]) = (*act, rest) {
        for name in lvmd::names(Path::new(socket), class)? {
            println!("{name}");
        }
        return Ok(());
    }
    let client = Client::connect(Path::new(socket))?;
    // Without a kind of filesystem: the one that it has.
    let access = Access::Filesystem("");
    match (*act, rest) {
        ("publish", [volume, path]) => client.publish(volume, Path::new(path), access)?,
        ("unpublish", [volume, path]) => client.unpublish(volume, Path::new(path))?,
        ("create", [name, class, bytes]) => {
            println!("{}", client.create(name, class, bytes.parse()?, access, None)?.volume_id);
        }
        ("grow", [volume, bytes]) => println!("{}", client.grow(volume, bytes.parse()?, access, None)?),
        ("snapshot", [name, volume]) => println!("{}", client.snapshot(name, volume)?.snapshot_id),
        ("delete", [volume]) => client.delete(volume)?,
        ("delete-snapshot", [snapshot]) => client.delete_snapshot(snapshot)?,
        _ => return Err(USAGE.into()),
    }
    Ok(())
}
