//! Unix sockets that only root can speak to.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream as Connection};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt};

/// Whether somebody still listens is looked at so often.
const AGAIN: Duration = Duration::from_millis(500);

/// Listens at a path, in the place of whoever listened there before.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    listen(path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// A socket that we made.
#[derive(Debug)]
pub struct Owned {
    path: PathBuf,
    /// Its file, by which it is told from one that somebody else has put in its place.
    file: (u64, u64),
}

impl Owned {
    fn at(path: &Path) -> io::Result<Owned> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Owned { path: path.to_owned(), file: (metadata.dev(), metadata.ino()) })
    }

    /// Removes it, unless another one has its place by now.
    pub fn remove(self) {
        if Owned::at(&self.path).is_ok_and(|now| now.file == self.file)
            && let Err(error) = remove(&self.path)
        {
            tracing::warn!(socket = %self.path.display(), %error, "the socket could not be removed");
        }
    }
}

/// Listens at a path, in the place of one that nobody serves any more.
pub fn bind_unless_served(path: &Path) -> io::Result<(UnixListener, Owned)> {
    if UnixStream::connect(path).is_ok() {
        let problem = format!("{}: somebody else serves there: end that first", path.display());
        return Err(io::Error::new(io::ErrorKind::AddrInUse, problem));
    }
    let listener = bind(path)?;
    Ok((listener, Owned::at(path)?))
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

/// Connections of those who may speak to us. A socket's mode can be changed, and its descriptor be given away: the kernel
/// says who has connected.
pub fn connections(
    listener: UnixListener,
) -> impl Stream<Item = io::Result<Connection>> + Send + Unpin + 'static {
    let ours = rustix::process::geteuid().as_raw();
    UnixListenerStream::new(listener).filter(move |accepted| {
        let Ok(connection) = accepted else { return true };
        match connection.peer_cred() {
            Ok(peer) if may_speak(peer.uid(), ours) => true,
            peer => {
                tracing::warn!(?peer, "somebody who is not root has connected: the connection is closed");
                false
            }
        }
    })
}

/// Who may: root, and who we are ourselves.
fn may_speak(user: u32, ours: u32) -> bool {
    user == 0 || user == ours
}

/// Waits until nobody listens at a path any more.
pub async fn vacated(path: &Path) {
    let mut told = false;
    // Refused, or no socket at all: whoever listened there has ended.
    while tokio::net::UnixStream::connect(path).await.is_ok() {
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(socket = %path.display(), "another driver still serves here: its end is waited for");
        }
        tokio::time::sleep(AGAIN).await;
    }
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

    #[tokio::test]
    async fn who_still_serves_at_a_socket_is_waited_for() {
        let path = std::env::temp_dir().join(format!("lvms-vacated-{}.sock", std::process::id()));
        let listener = bind(&path).unwrap();
        let place = path.clone();
        let waiting = tokio::spawn(async move { vacated(&place).await });
        // The first look is a connection that was accepted: somebody is there.
        listener.accept().await.unwrap();
        assert!(!waiting.is_finished());
        drop(listener);
        waiting.await.unwrap();
        remove(&path).unwrap();
        vacated(&path).await;
    }

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

    #[test]
    fn root_may_speak_to_us_and_so_may_we_and_nobody_else() {
        assert!(may_speak(0, 0) && may_speak(0, 65532) && may_speak(65532, 65532));
        assert!(!may_speak(1000, 0) && !may_speak(1000, 65532));
    }

    #[tokio::test]
    async fn a_connection_of_ours_is_let_in() {
        let path = std::env::temp_dir().join(format!("lvms-connections-{}.sock", std::process::id()));
        let mut connections = connections(bind(&path).unwrap());
        let _peer = UnixStream::connect(&path).unwrap();
        connections.next().await.unwrap().unwrap();
        remove(&path).unwrap();
    }

    #[tokio::test]
    async fn a_served_socket_is_not_stolen_and_only_our_own_is_removed() {
        let directory = std::env::temp_dir().join(format!("lvms-owned-sockets-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let path = directory.join("lvmd.sock");
        let (theirs, served) = bind_unless_served(&path).unwrap();
        let refused = bind_unless_served(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse, "{refused}");
        UnixStream::connect(&path).unwrap();
        // Killed, it leaves its socket, which another takes the place of; its own end is nothing to that.
        drop(theirs);
        let (_ours, owned) = bind_unless_served(&path).unwrap();
        served.remove();
        UnixStream::connect(&path).unwrap();
        owned.remove();
        assert!(!path.exists());
        fs::remove_dir_all(directory).unwrap();
    }
}
