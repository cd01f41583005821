//! `lab-csi publish|unpublish SOCKET VOLUME PATH`: what a kubelet asks of a driver, asked by hand.

use std::path::Path;

use lab_csi::{Access, Client, Error};

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [act, socket, volume, path] = words[..] else {
        return Err("use: lab-csi publish|unpublish SOCKET VOLUME PATH".into());
    };
    let client = Client::connect(Path::new(socket))?;
    match act {
        // Without a kind of filesystem: the one that it has.
        "publish" => client.publish(volume, Path::new(path), Access::Filesystem(""))?,
        "unpublish" => client.unpublish(volume, Path::new(path))?,
        other => return Err(format!("{other:?} is neither publish nor unpublish").into()),
    }
    Ok(())
}
