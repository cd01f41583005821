//! The protocol of TopoLVM's lvmd, as its clients see it, on real LVM.

mod driver;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use driver::{Driver, HeldTool, MIB, PROGRAM, device, refused};
use lab_csi::{Access, Code, Status};
use lab_test::{GIB, Lab, Needs, Result, run};
use lvms_lvmd::health::HealthCheckRequest;
use lvms_lvmd::health::health_check_response::ServingStatus;
use lvms_lvmd::health::health_client::HealthClient;
use lvms_lvmd::proto::lv_service_client::LvServiceClient;
use lvms_lvmd::proto::vg_service_client::VgServiceClient;
use lvms_lvmd::proto::{
    CreateLvRequest, CreateLvSnapshotRequest, Empty, GetFreeBytesRequest, GetLvListRequest, LogicalVolume,
    RemoveLvRequest, ResizeLvRequest, WatchResponse,
};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Streaming};

const SOCKET: &str = "/run/test/topolvm/lvmd.sock";

/// The driver's configuration begins with its classes.
const CLASSES: &str = "  - {name: thick, volume-group: vg, default: true, spare-gb: 0}
  - {name: thin, volume-group: vg, type: thin, thin-pool: {name: pool, overprovision-ratio: 2}}
lvcreate-option-classes:
  - {name: two-disks, options: [--type=raid1]}
socket-name: /run/test/topolvm/lvmd.sock
";

fn start(lab: &Lab, options: &[&str]) -> Result<Driver> {
    run("vgcreate", ["vg", lab.disk(0)])?;
    run("lvcreate", ["-qq", "-y", "--type", "thin-pool", "-n", "pool", "-L", "300m", "vg"])?;
    Driver::start(lab, CLASSES, options)
}

/// A client of lvmd.
struct Client {
    runtime: Runtime,
    channel: Channel,
}

type Answer<T> = std::result::Result<T, Status>;

impl Client {
    fn connect() -> Result<Client> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::try_from(format!("unix://{SOCKET}"))?;
        let channel = runtime.block_on(endpoint.connect())?;
        Ok(Client { runtime, channel })
    }

    fn volumes<T>(
        &self,
        call: impl AsyncFnOnce(LvServiceClient<Channel>) -> Answer<Response<T>>,
    ) -> Answer<T> {
        self.runtime.block_on(call(LvServiceClient::new(self.channel.clone()))).map(Response::into_inner)
    }

    fn groups<T>(
        &self,
        call: impl AsyncFnOnce(VgServiceClient<Channel>) -> Answer<Response<T>>,
    ) -> Answer<T> {
        self.runtime.block_on(call(VgServiceClient::new(self.channel.clone()))).map(Response::into_inner)
    }

    fn create(&self, request: CreateLvRequest) -> Answer<LogicalVolume> {
        let made = self.volumes(async |mut service| service.create_lv(request).await)?;
        made.volume.ok_or_else(|| Status::internal("no volume"))
    }

    fn copy(&self, name: &str, class: &str, source: &str, access: &str, size: i64) -> Answer<LogicalVolume> {
        let request = CreateLvSnapshotRequest {
            name: name.into(),
            tags: vec!["copied".into()],
            device_class: class.into(),
            source_volume: source.into(),
            access_type: access.into(),
            size_bytes: size,
        };
        let made = self.volumes(async |mut service| service.create_lv_snapshot(request).await)?;
        made.snapshot.ok_or_else(|| Status::internal("no snapshot"))
    }

    fn resize(&self, name: &str, class: &str, size_bytes: i64) -> Answer<i64> {
        let request = ResizeLvRequest { name: name.into(), device_class: class.into(), size_bytes };
        Ok(self.volumes(async |mut service| service.resize_lv(request).await)?.size_bytes)
    }

    fn remove(&self, name: &str, class: &str) -> Answer<()> {
        let request = RemoveLvRequest { name: name.into(), device_class: class.into() };
        self.volumes(async |mut service| service.remove_lv(request).await).map(drop)
    }

    fn list(&self, class: &str) -> Answer<Vec<LogicalVolume>> {
        let request = GetLvListRequest { device_class: class.into() };
        Ok(self.groups(async |mut service| service.get_lv_list(request).await)?.volumes)
    }

    fn names(&self, class: &str) -> Answer<Vec<String>> {
        Ok(self.list(class)?.into_iter().map(|volume| volume.name).collect())
    }

    fn free(&self, class: &str) -> Answer<u64> {
        let request = GetFreeBytesRequest { device_class: class.into() };
        Ok(self.groups(async |mut service| service.get_free_bytes(request).await)?.free_bytes)
    }

    fn watch(&self) -> Answer<Streaming<WatchResponse>> {
        self.groups(async |mut service| service.watch(Empty {}).await)
    }

    fn next(&self, stream: &mut Streaming<WatchResponse>) -> Answer<WatchResponse> {
        self.runtime.block_on(stream.message())?.ok_or_else(|| Status::internal("the stream has ended"))
    }
}

fn wish(name: &str, class: &str, size: i64) -> CreateLvRequest {
    CreateLvRequest {
        name: name.into(),
        device_class: class.into(),
        size_bytes: size,
        ..CreateLvRequest::default()
    }
}

/// The device that a volume has by its numbers must be the one that LVM has made.
fn has_its_device(volume: &LogicalVolume) -> Result {
    let number = fs::metadata(device("vg", &volume.name))?.rdev();
    let (major, minor) = (u64::from(volume.dev_major), u64::from(volume.dev_minor));
    assert_eq!(number, (major << 8) | (minor & 0xff) | ((minor & !0xff) << 12), "{volume:?}");
    Ok(())
}

fn fill(name: &str, with: &str) -> Result {
    fs::write(device("vg", name), with.repeat(1 << 16))?;
    run("sync", [""; 0])?;
    Ok(())
}

fn begins(name: &str, with: &str) -> Result {
    let bytes = run("head", ["-c", &with.len().to_string(), &device("vg", name).to_string_lossy()])?;
    assert_eq!(bytes, with, "{name}");
    Ok(())
}

fn volumes_live_by_lvmds_protocol_as_with_lvmd(lab: &Lab) -> Result {
    let driver = start(lab, &["--lvmd-protocol"])?;
    let client = Client::connect()?;
    let well = client.runtime.block_on(
        HealthClient::new(client.channel.clone()).check(HealthCheckRequest { service: String::new() }),
    )?;
    assert_eq!(well.into_inner().status(), ServingStatus::Serving);
    let mut watched = client.watch()?;
    let first = client.next(&mut watched)?;
    let free = client.free("")?;
    assert_eq!((first.free_bytes, client.free("thick")?), (free, free));
    assert_eq!(first.items.len(), 2);
    let pool = first.items[1].thin_pool.expect("of a thin class");
    assert_eq!((pool.size_bytes, pool.overprovision_bytes), (300 << 20, 600 << 20));

    // Made as asked, rounded up to whole extents, with the caller's tags and nothing of ours.
    let request =
        CreateLvRequest { tags: vec!["a".into(), "b=c".into()], ..wish("first", "thick", 33 * MIB + 1) };
    let made = client.create(request)?;
    assert_eq!((made.name.as_str(), made.size_bytes), ("first", 36 * MIB));
    has_its_device(&made)?;
    assert_eq!(run("lvs", ["--noheadings", "-o", "lv_tags", "vg/first"])?, "a,b=c");
    let told = client.next(&mut watched)?;
    assert_eq!(told.free_bytes, free - (36 << 20));
    run("lvcreate", ["-qq", "-y", "-n", "by-hand", "-L", "8m", "vg"])?;
    let listed = client.list("thick")?;
    assert_eq!(client.names("")?, ["by-hand", "first"]);
    assert_eq!((listed[1].path.as_str(), listed[1].attr.as_str()), ("/dev/vg/first", "-wi-a-----"));
    assert_eq!(listed[1].tags, ["a", "b=c"]);
    assert!(client.names("thin")?.is_empty());

    assert_eq!(client.resize("first", "thick", 50 * MIB)?, 52 * MIB);
    assert_eq!(client.resize("first", "thick", 8 * MIB)?, 52 * MIB, "nothing shrinks");
    fill("first", "old")?;

    // Thin ones, their snapshots and copies, as lvmd has them; thick ones, too.
    client.create(wish("thin-first", "thin", 64 * MIB))?;
    fill("thin-first", "old")?;
    for (class, source) in [("thin", "thin-first"), ("thick", "first")] {
        let (snapshot, copy) = (format!("{class}-snapshot"), format!("{class}-copy"));
        let taken = client.copy(&snapshot, class, source, "ro", 0)?;
        fill(source, "new")?;
        let size = taken.size_bytes + 8 * MIB;
        let copied = client.copy(&copy, class, &snapshot, "rw", size)?;
        assert_eq!(copied.size_bytes, size);
        has_its_device(&taken)?;
        has_its_device(&copied)?;
        begins(&snapshot, "old")?;
        begins(&copy, "old")?;
        begins(source, "new")?;
        assert!(copied.tags.contains(&"copied".to_owned()), "{copied:?}");
        fill(&copy, "mine")?;
        begins(&snapshot, "old")?;
    }
    assert!(fs::write(device("vg", "thin-snapshot"), "x").is_err(), "a snapshot can be written");
    assert_eq!(client.names("thin")?, ["thin-copy", "thin-first", "thin-snapshot"]);
    assert_eq!(client.names("thick")?, ["by-hand", "first", "thick-copy", "thick-snapshot"]);
    for (class, name) in [
        ("thin", "thin-snapshot"),
        ("thin", "thin-copy"),
        ("thin", "thin-first"),
        ("thick", "thick-snapshot"),
        ("thick", "thick-copy"),
        ("thick", "first"),
        ("", "by-hand"),
    ] {
        client.remove(name, class)?;
        refused(client.remove(name, class), Code::NotFound, &[name]);
    }
    assert_eq!(run("lvs", ["--noheadings", "-o", "lv_name", "vg"])?, "pool");
    assert_eq!(client.free("")?, free);
    // The same volumes are seen by CSI, which is served beside.
    client.create(wish("b5a6cf0e-6a1e-4f0c-9a5e-0a3c1d5f9b11", "thick", 8 * MIB))?;
    driver.client.delete("b5a6cf0e-6a1e-4f0c-9a5e-0a3c1d5f9b11")?;
    assert!(client.names("")?.is_empty());
    Ok(())
}

fn what_is_left_of_a_copy_goes_with_the_same_call(lab: &Lab) -> Result {
    let _driver = start(lab, &["--lvmd-protocol"])?;
    let client = Client::connect()?;
    client.create(wish("source", "thick", 8 * MIB))?;
    let copy = || client.copy("copy", "thin", "source", "rw", 0);
    copy()?;
    refused(copy(), Code::AlreadyExists, &["copy"]);
    // As whoever was killed after the copy's last byte leaves it.
    let words = ["-n", "lvms-copy-copy", "-l", "1", "--addtag", "lvms.io/temporary=copy", "vg/source"];
    run("lvcreate", ["-qq", "-y", "-s"].iter().chain(&words))?;
    copy()?;
    refused(copy(), Code::AlreadyExists, &["copy"]);
    client.remove("source", "thick")?;
    client.remove("copy", "thin")?;
    Ok(())
}

fn what_lvmd_refuses_is_refused_with_its_codes_and_changes_nothing(lab: &Lab) -> Result {
    let _driver = start(lab, &["--lvmd-protocol"])?;
    let client = Client::connect()?;
    client.create(wish("there", "thick", 8 * MIB))?;
    client.create(wish("thin-there", "thin", 8 * MIB))?;
    client.copy("moment", "thick", "there", "ro", 0)?;
    let state = || run("lvs", ["--noheadings", "-o", "lv_name,lv_size,lv_tags,vg_free_count"]);
    let before = state()?;

    let create = |request: CreateLvRequest| client.create(request);
    refused(create(wish("x", "nope", MIB)), Code::NotFound, &["device-class not found: nope"]);
    let unknown = CreateLvRequest { lvcreate_option_class: "nope".into(), ..wish("x", "thick", MIB) };
    refused(create(unknown), Code::Internal, &["unsupported lvcreate-option-class target: nope"]);
    let raid = CreateLvRequest { lvcreate_option_class: "two-disks".into(), ..wish("x", "thick", MIB) };
    refused(create(raid), Code::ResourceExhausted, &["vg"]);
    refused(create(wish("x", "thick", 1 << 40)), Code::ResourceExhausted, &["vg"]);
    refused(create(wish("x", "thin", 1 << 40)), Code::ResourceExhausted, &["pool"]);
    refused(create(wish("there", "thick", 8 * MIB)), Code::AlreadyExists, &["there"]);
    refused(create(wish("x", "thick", 0)), Code::InvalidArgument, &["size_bytes"]);
    for name in ["", "-f", "a/b", "pvmove0"] {
        refused(create(wish(name, "thick", MIB)), Code::InvalidArgument, &["name"]);
    }
    let forged = CreateLvRequest { tags: vec!["lvms.io/used".into()], ..wish("x", "thick", MIB) };
    refused(create(forged), Code::InvalidArgument, &["tags", "reserved"]);

    refused(client.list("nope"), Code::NotFound, &["nope"]);
    refused(client.free("nope"), Code::NotFound, &["nope"]);
    refused(client.resize("there", "nope", GIB as i64), Code::NotFound, &["nope"]);
    refused(client.resize("missing", "thick", 16 * MIB), Code::NotFound, &["missing"]);
    refused(client.resize("thin-there", "thin", 1 << 40), Code::ResourceExhausted, &["pool"]);
    refused(client.remove("there", "nope"), Code::NotFound, &["nope"]);
    refused(client.remove("--yes", "thick"), Code::NotFound, &[]);
    // lvmd would take the snapshot along, and a whole pool with all its volumes.
    refused(client.remove("there", "thick"), Code::FailedPrecondition, &["moment"]);
    refused(client.remove("pool", "thin"), Code::FailedPrecondition, &["vg/pool"]);

    let copy = |source: &str, access: &str, size| client.copy("x", "thick", source, access, size);
    refused(copy("missing", "rw", 0), Code::NotFound, &["missing"]);
    refused(copy("there", "rw", 4 * MIB), Code::OutOfRange, &["8 MiB"]);
    refused(copy("there", "ro", 4 * MIB), Code::OutOfRange, &["8 MiB"]);
    refused(copy("there", "ro", 16 * MIB), Code::Unimplemented, &["8 MiB"]);
    refused(copy("there", "rx", 0), Code::InvalidArgument, &["access_type"]);
    refused(client.copy("there", "thick", "there", "rw", 0), Code::AlreadyExists, &["there"]);
    assert_eq!(state()?, before);

    // A group that is gone has no volumes that are gone.
    run("vgchange", ["-an", "vg"])?;
    run("vgrename", ["vg", "elsewhere"])?;
    refused(client.remove("there", "thick"), Code::FailedPrecondition, &["vg"]);
    Ok(())
}

fn the_socket_of_lvmd_is_roots_and_neither_stolen_nor_left(lab: &Lab) -> Result {
    let socket = Path::new(SOCKET);
    drop(start(lab, &[])?);
    assert!(!socket.exists(), "served though nobody asked for it");
    let mut driver = Driver::start(lab, CLASSES, &["--lvmd-protocol"])?;
    let metadata = fs::symlink_metadata(socket)?;
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);

    let mut second = Command::new(PROGRAM);
    second.args(["standalone", "--config"]).arg(lab.state().join("driver.yaml")).arg("--lvmd-protocol");
    second.args(["--endpoint", "/run/test/second.sock", "--runtime-directory", "/run/test/second"]);
    let refused = second.output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("somebody else serves there"), "{said}");
    Client::connect()?.names("thick")?;

    // Killed, it leaves its socket, and the next one takes its place.
    driver.running.process.kill()?;
    driver.running.process.wait()?;
    assert!(socket.exists());
    drop(driver);
    // Told to end, it waits neither for those who watch nor for those who keep a connection, and leaves nothing.
    let mut again = Command::new(PROGRAM);
    again.args(["standalone", "--config"]).arg(lab.state().join("driver.yaml")).arg("--lvmd-protocol");
    let mut again = again.args(["--endpoint", "/run/test/again.sock"]).spawn()?;
    let client = lab.wait_for("the socket to be served", || Client::connect().ok())?;
    let mut watched = client.watch()?;
    client.next(&mut watched)?;
    run("kill", ["-TERM", &again.id().to_string()])?;
    assert!(client.next(&mut watched).is_err());
    assert!(again.wait()?.success());
    assert!(!socket.exists());
    drop((watched, client));
    Ok(())
}

fn a_volume_on_which_csi_works_is_left_alone(lab: &Lab) -> Result {
    let driver = start(lab, &["--lvmd-protocol"])?;
    let lvmd = Client::connect()?;
    let ext4 = Access::Filesystem("ext4");
    let id = driver.client.create("v", "thick", 64 * MIB, ext4, None)?.volume_id;
    let target = lab.state().join("at");
    let tool = HeldTool::hold("mkfs.ext4")?;
    let publisher = driver.connect()?;
    std::thread::scope(|scope| -> Result {
        let published = scope.spawn(|| publisher.publish(&id, &target, ext4));
        lab.wait_for("the tool to begin", || (tool.begun() == 1).then_some(()))?;
        let mut request =
            tonic::Request::new(RemoveLvRequest { name: id.clone(), device_class: "thick".into() });
        request.set_timeout(Duration::from_secs(40));
        let removed = lvmd.volumes(async |mut service| service.remove_lv(request).await);
        refused(removed, Code::Aborted, &["another call is busy with", &id]);
        tool.let_go()?;
        published.join().map_err(|_| "the thread panicked")??;
        Ok(())
    })?;
    driver.client.unpublish(&id, &target)?;
    driver.client.delete(&id)?;
    Ok(())
}

lab_test::main! {
    a_volume_on_which_csi_works_is_left_alone: Needs::disks(1, GIB).guest(),
    volumes_live_by_lvmds_protocol_as_with_lvmd: Needs::disks(1, GIB).guest(),
    what_is_left_of_a_copy_goes_with_the_same_call: Needs::disks(1, GIB).guest(),
    what_lvmd_refuses_is_refused_with_its_codes_and_changes_nothing: Needs::disks(1, GIB).guest(),
    the_socket_of_lvmd_is_roots_and_neither_stolen_nor_left: Needs::disks(1, GIB).guest(),
}
