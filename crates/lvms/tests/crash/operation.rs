//! An operation that is tried again and again, with a driver that dies at another point each time.

use std::fs;

use lab_csi::Client;
use lab_test::{Lab, Result, run};

use crate::driver::Driver;

/// What is there: volumes with sizes and what is known of them, free extents, devices, mounts. Nothing may be suspended.
pub(crate) fn state() -> Result<String> {
    let volumes = run("lvs", ["--noheadings", "-o", "vg_name,lv_name,lv_size,lv_tags,vg_free_count"])?;
    // Identities are made anew each time.
    let plain = |word: &str| !word.starts_with("lvms.io/fsid=") && !word.starts_with("lvms.io/created=");
    let known = volumes.lines().map(|line| {
        line.split([' ', ',']).filter(|word| !word.is_empty() && plain(word)).collect::<Vec<_>>().join(" ")
    });
    let mut devices = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let device = entry?.path().join("dm");
        if let Ok(suspended) = fs::read_to_string(device.join("suspended")) {
            let name = fs::read_to_string(device.join("name"))?;
            assert_eq!(suspended.trim(), "0", "{name} is suspended");
            devices.push(format!("device {}", name.trim()));
        }
    }
    devices.sort();
    let mounts = fs::read_to_string("/proc/mounts")?;
    let mounts = mounts.lines().filter(|line| line.contains("/run/test/")).map(str::to_owned);
    Ok(known.chain(devices).chain(mounts).collect::<Vec<_>>().join("\n"))
}

pub(crate) type Act<'a> = Box<dyn Fn(&Client) -> Result + 'a>;

/// An operation, and what surrounds it while it is tried again and again.
pub(crate) struct Operation<'a> {
    what: &'static str,
    pub(crate) act: Act<'a>,
    /// Makes what it needs.
    pub(crate) prepare: Act<'a>,
    /// Sees that its result is good.
    pub(crate) verify: Act<'a>,
    /// Brings back what was after `prepare`.
    pub(crate) undo: Act<'a>,
    /// Brings back what was before `prepare`.
    finish: Act<'a>,
}

impl<'a> Operation<'a> {
    pub(crate) fn new(what: &'static str, act: impl Fn(&Client) -> Result + 'a) -> Operation<'a> {
        let nothing = || Box::new(|_: &Client| Ok(()));
        Operation {
            what,
            act: Box::new(act),
            prepare: nothing(),
            verify: nothing(),
            undo: nothing(),
            finish: nothing(),
        }
    }

    pub(crate) fn prepared(self, prepare: impl Fn(&Client) -> Result + 'a) -> Self {
        Operation { prepare: Box::new(prepare), ..self }
    }

    pub(crate) fn verified(self, verify: impl Fn(&Client) -> Result + 'a) -> Self {
        Operation { verify: Box::new(verify), ..self }
    }

    pub(crate) fn undone(self, undo: impl Fn(&Client) -> Result + 'a) -> Self {
        Operation { undo: Box::new(undo), ..self }
    }

    pub(crate) fn finished(self, finish: impl Fn(&Client) -> Result + 'a) -> Self {
        Operation { finish: Box::new(finish), ..self }
    }

    /// Kills the driver at every point. Returns their number.
    pub(crate) fn survives_every_point(&self, lab: &Lab, driver: &mut Driver) -> Result<u32> {
        let what = self.what;
        driver.arm(0)?;
        (self.prepare)(driver.client()?)?;
        let before = state()?;
        lab.await_synchronised()?;
        (self.act)(driver.client()?).map_err(|error| format!("{what}, undisturbed: {error}"))?;
        (self.verify)(driver.client()?)?;
        let after = state()?;
        let mut point = 0;
        loop {
            lab.await_synchronised()?;
            (self.undo)(driver.client()?).map_err(|error| format!("undoing {what}, {point}: {error}"))?;
            point += 1;
            lab.await_synchronised()?;
            let died = self.dies_at(point, lab, driver)?;
            lab.await_synchronised()?;
            let second = (self.act)(driver.client()?);
            second.map_err(|error| format!("{what}, after a crash at point {point}: {error}"))?;
            (self.verify)(driver.client()?)
                .map_err(|error| format!("{what}, after a crash at point {point}: {error}"))?;
            assert_eq!(state()?, after, "{what}, after a crash at point {point}");
            if !died {
                break;
            }
        }
        lab.await_synchronised()?;
        (self.undo)(driver.client()?)?;
        assert_eq!(state()?, before, "{what}, undone");
        lab.await_synchronised()?;
        (self.finish)(driver.client()?)?;
        println!("# {what}: {} points", point - 1);
        Ok(point - 1)
    }

    /// Begins it with a driver that is killed at this point, and starts the driver again. `false` if there is no such
    /// point any more.
    pub(crate) fn dies_at(&self, point: u32, lab: &Lab, driver: &mut Driver) -> Result<bool> {
        driver.arm(point)?;
        let first = (self.act)(driver.client()?);
        // A connection breaks a moment before its process has ended.
        let died = match &first {
            Ok(()) => driver.has_died()?,
            Err(error) => lab.wait_for(&format!("the driver to die of {error}"), || {
                driver.has_died().ok().filter(|died| *died)
            })?,
        };
        driver.arm(0)?;
        if died {
            driver.again()?;
        }
        Ok(died)
    }
}
