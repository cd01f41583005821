//! What the lab's own pods run beside busybox: a webhook, and a client that needs no library.

mod webhook;

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["webhook", directory] => webhook::serve_for_ever(Path::new(directory)),
        ["get", address] => get(address.parse()?),
        _ => Err("usage: lab-pod webhook <directory with tls.crt and tls.key> | get <address:port>".into()),
    }
}

/// Prints what an HTTP server has at `/`. The static busybox crashes where it would resolve names.
fn get(address: SocketAddr) -> Result<()> {
    let limit = Duration::from_secs(20);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    write!(stream, "GET / HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("the answer has no body")?;
    if !head.contains(" 200 ") {
        return Err(head.to_owned().into());
    }
    print!("{body}");
    Ok(())
}
