//! The lab's own network: a bridge with an address, a tap device per guest, routes to the pods of each node.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::process;

/// The bridge's name, alone in its namespace.
const BRIDGE: &str = "lab0";

/// The network of this namespace.
pub(crate) struct Network {
    used: Mutex<BTreeSet<u8>>,
}

impl Network {
    /// Makes the bridge.
    pub(crate) fn up() -> Result<Network> {
        let network = Network { used: Mutex::default() };
        ip(&format!(
            "link set lo up\nlink add {BRIDGE} type bridge forward_delay 0\naddress add {}/16 dev {BRIDGE}\nlink set {BRIDGE} up\n",
            network.gateway()
        ))?;
        // Nodes reach services by way of the lab.
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        Ok(network)
    }

    /// The lab's own address.
    pub(crate) fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 88, 0, 1)
    }

    /// The address of the guest with this number.
    pub(crate) fn address(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 88, 0, 10 + number)
    }

    /// A tap device for one more guest; its number names it.
    pub(crate) fn new_tap(&self) -> Result<u8> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let number = (0..200).find(|number| !used.contains(number)).context("200 guests are enough")?;
        // A guest's packet for a service may go back to it.
        ip(&format!(
            "tuntap add dev tap{number} mode tap\nlink set tap{number} master {BRIDGE} up\n\
             link set tap{number} type bridge_slave hairpin on\n"
        ))?;
        used.insert(number);
        Ok(number)
    }

    /// The guest with this number is gone.
    pub(crate) fn remove_tap(&self, number: u8) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if ip(&format!("link delete tap{number}\n")).is_ok() {
            used.remove(&number);
        }
    }

    /// Packets for `range` (as `10.1.2.0/24`) go to this guest.
    pub(crate) fn route(&self, range: &str, via: Ipv4Addr) -> Result<()> {
        ip(&format!("route replace {range} via {via}\n"))
    }
}

fn ip(batch: &str) -> Result<()> {
    process::run_with_input(process::program("ip").args(["-batch", "-"]), batch.as_bytes())?;
    Ok(())
}
