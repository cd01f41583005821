//! A guest's bus for disks: virtio's SCSI, served to the guest over the vhost-user protocol.
//!
//! The guest's memory is shared with this process, which finds the guest's commands there and leaves what they gave.
//! Disks come and go while the guest runs: an event tells it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail};
use vhost::vhost_user::Error::{Disconnected, PartialMessage};
use vhost::vhost_user::Listener;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{Error, VhostUserBackend, VhostUserDaemon, VringRwLock, VringT};
use virtio_queue::{DescriptorChain, QueueT};
use vm_memory::{
    Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryLoadGuard, GuestMemoryMmap,
};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

use super::lock;
use super::medium::Medium;
use super::scsi::{self, Outcome};

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
type Ring = VringRwLock<Memory>;
type Chain = DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>;

/// Numbers of the device, as virtio's specification names them.
mod wire {
    pub(super) const CONTROL: u16 = 0;
    pub(super) const EVENT: u16 = 1;
    pub(super) const REQUEST: u16 = 2;
    pub(super) const QUEUES: usize = 3;
    pub(super) const QUEUE_SIZE: usize = 256;
    /// version 1, descriptors in tables of their own, disks that change (none does), disks that come and go
    pub(super) const FEATURES: u64 = 1 << 32 | 1 << 28 | 1 << 2 | 1 << 1;
    pub(super) const COMMAND_HEADER: usize = 19;
    pub(super) const COMMAND: usize = 32;
    pub(super) const SENSE: usize = 96;
    pub(super) const RESPONSE: usize = 12 + SENSE;
    pub(super) const OK: u8 = 0;
    pub(super) const NO_SUCH_TARGET: u8 = 3;
    pub(super) const CHECK_CONDITION: u8 = 2;
    pub(super) const TRANSPORT_RESET: u32 = 1;
    pub(super) const RESCAN: u32 = 1;
    pub(super) const REMOVED: u32 = 2;
    pub(super) const EVENT_SIZE: usize = 16;
    pub(super) const LAST_TARGET: u8 = 255;
    /// Where the first byte of a guest's memory lies in the process of a kernel in user mode.
    pub(super) const USER_MODE_MEMORY: u64 = 0x6000_0000;
}

/// The bus of one guest, for one boot.
pub(crate) struct Bus {
    device: Arc<Device>,
    socket: PathBuf,
    server: Option<JoinHandle<()>>,
}

struct Device {
    /// The guest whose bus it is.
    guest: String,
    /// Disks by their number on the bus, each with how often the guest's power had been cut when it was plugged in.
    targets: Mutex<BTreeMap<u8, (Arc<Medium>, u32)>>,
    /// The number for the next disk. The guest hears of one that is gone and of one that is new in any order, so a
    /// number rests before it is used again.
    next: AtomicU8,
    memory: Mutex<Option<Memory>>,
    /// The guest's process, if its kernel is one.
    process: Mutex<Option<u32>>,
    events: Mutex<Events>,
}

/// What the guest has to hear.
#[derive(Default)]
struct Events {
    ring: Option<Ring>,
    waiting: VecDeque<[u8; wire::EVENT_SIZE]>,
}

impl Bus {
    /// Serves a bus with these disks at a socket, for the guest that connects first.
    pub(crate) fn serve(socket: &Path, guest: &str, disks: &[Arc<Medium>]) -> Result<Bus> {
        let device = Arc::new(Device {
            guest: guest.to_owned(),
            targets: Mutex::default(),
            next: AtomicU8::default(),
            memory: Mutex::default(),
            process: Mutex::default(),
            events: Mutex::default(),
        });
        for medium in disks {
            device.add(medium)?;
        }
        let mut listener = Listener::new(socket, true).context("the bus for disks")?;
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let mut daemon = VhostUserDaemon::new(format!("{guest}-disks"), Served(Arc::clone(&device)), memory)
            .map_err(|error| anyhow::anyhow!("the bus for disks: {error}"))?;
        let server = thread::spawn(move || {
            match daemon.start(&mut listener).and_then(|()| daemon.wait()) {
                // The guest has ended.
                Ok(()) | Err(Error::HandleRequest(Disconnected | PartialMessage)) => {}
                Err(error) => eprintln!("the bus for disks has ended: {error}"),
            }
        });
        Ok(Bus { device, socket: socket.to_owned(), server: Some(server) })
    }

    /// The guest's kernel is this process. It shares all memory but that of its own variables, and disks are given
    /// that, too, for example where zeros shall be written.
    pub(crate) fn belongs_to(&self, process: u32) {
        *lock(&self.device.process) = Some(process);
    }

    /// Plugs in a disk.
    pub(crate) fn plug(&self, medium: &Arc<Medium>) -> Result<()> {
        let target = self.device.add(medium)?;
        self.device.tell(target, wire::RESCAN);
        Ok(())
    }

    /// Pulls out a disk.
    pub(crate) fn unplug(&self, serial: &str) -> Result<()> {
        let mut targets = lock(&self.device.targets);
        let found = targets.iter().find(|(_, (medium, _))| medium.disk.serial == serial);
        let target = *found.with_context(|| format!("no disk {serial} in {}", self.device.guest))?.0;
        targets.remove(&target);
        drop(targets);
        self.device.tell(target, wire::REMOVED);
        Ok(())
    }

    /// Waits until nothing of the guest, which has ended, is under way any more.
    pub(crate) fn close(&mut self) {
        if let Some(server) = self.server.take() {
            // A guest that has never connected is waited for no longer.
            let _ = UnixStream::connect(&self.socket);
            let _ = server.join();
        }
    }
}

impl Device {
    fn add(&self, medium: &Arc<Medium>) -> Result<u8> {
        let mut targets = lock(&self.targets);
        let serial = &medium.disk.serial;
        if targets.values().any(|(known, _)| known.disk.serial == *serial) {
            bail!("{} has a disk {serial} already: serial numbers must differ", self.guest);
        }
        let mut numbers = (0..=wire::LAST_TARGET).map(|_| self.next.fetch_add(1, Ordering::Relaxed));
        let free = numbers.find(|number| !targets.contains_key(number));
        let free = free.with_context(|| format!("{} has as many disks as it can have", self.guest))?;
        targets.insert(free, (Arc::clone(medium), medium.store.cuts(&self.guest)));
        Ok(free)
    }

    fn tell(&self, target: u8, reason: u32) {
        let mut event = [0; wire::EVENT_SIZE];
        event[..4].copy_from_slice(&wire::TRANSPORT_RESET.to_le_bytes());
        event[4..8].copy_from_slice(&[1, target, 0, 0]);
        event[12..].copy_from_slice(&reason.to_le_bytes());
        let mut events = lock(&self.events);
        events.waiting.push_back(event);
        // The guest is told when it has room for events, now or when it boots.
        let _ = events.deliver(self);
    }

    fn memory(&self) -> io::Result<GuestMemoryLoadGuard<GuestMemoryMmap>> {
        Ok(lock(&self.memory).as_ref().ok_or_else(|| io::Error::other("no memory is shared"))?.memory())
    }

    fn next(&self, ring: &Ring) -> io::Result<Option<Chain>> {
        let memory = self.memory()?;
        Ok(ring.get_mut().get_queue_mut().pop_descriptor_chain(memory))
    }

    fn requests(self: &Arc<Self>, ring: &Ring) -> io::Result<()> {
        while let Some(chain) = self.next(ring)? {
            let request = Request::from(&self.take(&chain)?)?;
            let found = lock(&self.targets).get(&request.target).cloned();
            let Some((medium, cuts)) = found.filter(|_| request.is_first_unit) else {
                self.give(ring, &chain, &response(wire::NO_SUCH_TARGET, None), &[])?;
                continue;
            };
            if medium.store.is_slow(&self.guest) {
                let (device, ring) = (Arc::clone(self), ring.clone());
                thread::spawn(move || device.answer(&ring, &chain, &medium, cuts, &request));
            } else {
                self.answer(ring, &chain, &medium, cuts, &request)?;
            }
        }
        Ok(())
    }

    fn answer(
        &self,
        ring: &Ring,
        chain: &Chain,
        medium: &Medium,
        cuts: u32,
        request: &Request,
    ) -> io::Result<()> {
        match scsi::perform(medium, &self.guest, cuts, &request.command, &request.data) {
            Outcome::Good(data) => self.give(ring, chain, &response(wire::OK, None), &data),
            Outcome::Check(sense) => self.give(ring, chain, &response(wire::OK, Some(sense)), &[]),
            Outcome::Lost => Ok(()),
        }
    }

    /// What the guest left in a chain.
    fn take(&self, chain: &Chain) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for part in chain.clone().readable() {
            let start = bytes.len();
            bytes.resize(start + part.len() as usize, 0);
            let bytes = &mut bytes[start..];
            if chain.memory().read_slice(bytes, part.addr()).is_err() {
                self.not_shared(|memory, offset| memory.read_exact_at(bytes, offset), part.addr())?;
            }
        }
        Ok(bytes)
    }

    /// Gives a chain back, with an answer and as much of the data as there is room for.
    fn give(&self, ring: &Ring, chain: &Chain, answer: &[u8], data: &[u8]) -> io::Result<()> {
        let room: usize = chain.clone().writable().map(|part| part.len() as usize).sum();
        let mut bytes = [answer, data].concat();
        if answer.len() == wire::RESPONSE {
            let left = u32::try_from(room.saturating_sub(bytes.len())).unwrap_or(u32::MAX);
            bytes[4..8].copy_from_slice(&left.to_le_bytes());
        }
        let mut rest = &bytes[..bytes.len().min(room)];
        let written = rest.len();
        for part in chain.clone().writable() {
            let (bytes, others) = rest.split_at(rest.len().min(part.len() as usize));
            if chain.memory().write_slice(bytes, part.addr()).is_err() {
                self.not_shared(|memory, offset| memory.write_all_at(bytes, offset), part.addr())?;
            }
            rest = others;
        }
        let written = u32::try_from(written).unwrap_or(u32::MAX);
        ring.add_used(chain.head_index(), written).map_err(io::Error::other)?;
        ring.signal_used_queue()
    }

    /// Reaches memory that the guest does not share.
    fn not_shared(
        &self,
        reach: impl FnOnce(&File, u64) -> io::Result<()>,
        address: GuestAddress,
    ) -> io::Result<()> {
        let process = *lock(&self.process);
        let process = process.ok_or_else(|| io::Error::other("an address beyond the memory"))?;
        let memory = File::options().read(true).write(true).open(format!("/proc/{process}/mem"))?;
        reach(&memory, wire::USER_MODE_MEMORY + address.0)
    }

    /// Whatever the guest wants to be aborted or reset: commands end by themselves.
    fn control(&self, ring: &Ring) -> io::Result<()> {
        while let Some(chain) = self.next(ring)? {
            self.give(ring, &chain, &[wire::OK], &[])?;
        }
        Ok(())
    }
}

impl Events {
    fn deliver(&mut self, device: &Device) -> io::Result<()> {
        let Some(ring) = &self.ring else { return Ok(()) };
        while let Some(event) = self.waiting.front() {
            let Some(chain) = device.next(ring)? else { return Ok(()) };
            device.give(ring, &chain, event, &[])?;
            self.waiting.pop_front();
        }
        Ok(())
    }
}

/// A command, as the guest left it.
struct Request {
    target: u8,
    is_first_unit: bool,
    command: [u8; wire::COMMAND],
    data: Vec<u8>,
}

impl Request {
    fn from(bytes: &[u8]) -> io::Result<Request> {
        let short = || io::Error::other("a command is too short");
        let (header, rest) = bytes.split_first_chunk::<{ wire::COMMAND_HEADER }>().ok_or_else(short)?;
        let (command, data) = rest.split_first_chunk().ok_or_else(short)?;
        let unit = u16::from_be_bytes([header[2] & 0x3f, header[3]]);
        let is_first_unit = header[0] == 1 && unit == 0;
        Ok(Request { target: header[1], is_first_unit, command: *command, data: data.to_vec() })
    }
}

fn response(code: u8, sense: Option<scsi::Sense>) -> [u8; wire::RESPONSE] {
    let mut bytes = [0; wire::RESPONSE];
    bytes[11] = code;
    if let Some(sense) = sense {
        let sense = sense.bytes();
        bytes[0] = u8::try_from(sense.len()).unwrap_or_default();
        bytes[10] = wire::CHECK_CONDITION;
        bytes[12..12 + sense.len()].copy_from_slice(&sense);
    }
    bytes
}

/// A device, as the protocol's library serves it.
#[derive(Clone)]
struct Served(Arc<Device>);

impl VhostUserBackend for Served {
    type Bitmap = ();
    type Vring = Ring;

    fn num_queues(&self) -> usize {
        wire::QUEUES
    }

    fn max_queue_size(&self) -> usize {
        wire::QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        wire::FEATURES | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        // queues for requests, segments, sectors, commands for a disk, sizes of events, sense and command
        let sizes = [wire::EVENT_SIZE, wire::SENSE, wire::COMMAND]
            .map(|size| u32::try_from(size).unwrap_or_default());
        let words = [1, 254, 0xffff, 128].into_iter().chain(sizes);
        let mut config: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        // the last channel, the last target, the last unit
        config.extend([0, 0, wire::LAST_TARGET, 0, 0, 0, 0, 0]);
        let (offset, size) = (offset as usize, size as usize);
        let mut part = config.get(offset..).unwrap_or_default().to_vec();
        part.resize(size, 0);
        part
    }

    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        *lock(&self.0.memory) = Some(memory);
        Ok(())
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK).ok()
    }

    fn handle_event(&self, queue: u16, _: EventSet, rings: &[Ring], _thread: usize) -> io::Result<()> {
        let Some(ring) = rings.get(usize::from(queue)) else { return Ok(()) };
        let done = match queue {
            wire::CONTROL => self.0.control(ring),
            wire::EVENT => {
                let mut events = lock(&self.0.events);
                events.ring = Some(ring.clone());
                events.deliver(&self.0)
            }
            wire::REQUEST => self.0.requests(ring),
            _ => Ok(()),
        };
        // The library ends the thread without a word.
        done.inspect_err(|error| eprintln!("the bus for disks of {} is broken: {error}", self.0.guest))
    }
}
