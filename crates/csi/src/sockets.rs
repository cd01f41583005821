//! Unix sockets that only root can speak to.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

/// Listens at a path, in the place of whoever listened there before.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    listen(path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.file_type().is_socket()) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "is there and is no socket"));
    }
    // It appears at its place at once, with its rights: whoever watches the directory sees a socket that is served.
    let hidden = hidden(path);
    remove(&hidden)?;
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let bound = UnixListener::bind(&hidden);
    rustix::process::umask(before);
    let bound = bound?;
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600))?;
    fs::rename(&hidden, path)?;
    Ok(bound)
}

/// Removes a socket; one that is not there is removed already.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A name in the same directory that begins with a dot, which the kubelet does not look at.
fn hidden(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[tokio::test]
    async fn a_socket_takes_the_place_of_a_dead_one_and_of_nothing_else() {
        let directory = std::env::temp_dir().join(format!("lvms-sockets-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let path = directory.join("sub").join("x@reg.sock");
        drop(bind(&path).unwrap());
        assert!(UnixStream::connect(&path).is_err());
        let _listener = bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let file = directory.join("file");
        fs::write(&file, "precious").unwrap();
        assert!(bind(&file).unwrap_err().to_string().contains("is no socket"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        fs::remove_dir_all(directory).unwrap();
    }
}
