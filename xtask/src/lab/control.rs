//! Does for tests in guests what only the outside can do.

use std::io::BufReader;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::thread;

use anyhow::{Context, Result};
use lab_protocol::control::{self, Answer, Ask, PORT};

use super::Lab;

/// Listens from now on, as long as the lab is there.
pub(super) fn listen(lab: &Arc<Lab>) -> Result<()> {
    let listener = TcpListener::bind((lab.network.gateway(), PORT))?;
    let lab = Arc::downgrade(lab);
    thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            let lab = Weak::clone(&lab);
            // A connection that breaks is a guest that lost its power, perhaps by asking for it.
            thread::spawn(move || attend(&lab, connection));
        }
    });
    Ok(())
}

fn attend(lab: &Weak<Lab>, mut connection: TcpStream) -> Result<()> {
    let IpAddr::V4(from) = connection.peer_addr()?.ip() else { return Ok(()) };
    let mut input = BufReader::new(connection.try_clone()?);
    while let Some(ask) = control::receive::<Ask>(&mut input)? {
        let lab = lab.upgrade().context("the lab is gone")?;
        let guest = lab
            .guests()
            .into_iter()
            .find(|guest| guest.address == from)
            .context("no guest has this address")?;
        let done = match ask {
            Ask::Fault { serial, fault } => guest.set_fault(&serial, fault).map(|()| Answer::Done),
            Ask::Plug { disk } => guest.plug_new(disk).map(|serial| Answer::Plugged { serial }),
            Ask::Unplug { serial } => guest.unplug(&serial).map(|()| Answer::Done),
            Ask::PlugBack { serial } => guest.plug_back(&serial).map(|()| Answer::Done),
            Ask::CutPower { cut } => guest.cut_power(cut).map(|()| Answer::Done),
        };
        let answer = done.unwrap_or_else(|error| Answer::Refused { reason: format!("{error:#}") });
        control::send(&mut connection, &answer)?;
    }
    Ok(())
}
