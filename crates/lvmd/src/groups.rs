//! lvmd's VGService: what is there, and how full it is.

use std::sync::Arc;
use std::time::Duration;

use lvms_csi::{Error, Kind};
use lvms_host::desired::Desired;
use lvms_host::runner::{Linux, Runner};
use lvms_host::units::Bytes;
use lvms_host::volumes::Volumes as Engine;
use lvms_node::host_volumes::HostVolumes;
use lvms_node::known::{options, options_for};
use lvms_node::status;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::proto::vg_service_server::VgService;
use crate::proto::{
    Empty, GetFreeBytesRequest, GetFreeBytesResponse, GetLvListRequest, GetLvListResponse, WatchResponse,
};
use crate::{class, told};

/// How full all is, is told again after so long though nothing has changed, as lvmd does.
const INTERVAL: Duration = Duration::from_secs(600);

/// Over the volume groups of this host.
pub(crate) struct Service {
    pub(crate) host: Arc<HostVolumes>,
    /// Whether we are about to end.
    pub(crate) ending: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl VgService for Service {
    async fn get_lv_list(
        &self,
        request: Request<GetLvListRequest>,
    ) -> Result<Response<GetLvListResponse>, Status> {
        let name = request.into_inner().device_class;
        let volumes = self
            .host
            .blocking(move |engine, desired| {
                let class = class(desired, &name)?;
                engine.look(&class.group).map_err(|error| status::of_volumes(&error))?;
                let inventory = engine.inventory();
                let group = inventory.groups.get(&class.group).ok_or_else(|| {
                    Error::new(Kind::Precondition, format!("there is no volume group {}", class.group))
                })?;
                let volumes = group.volumes.values().filter(|volume| told::is_listed(class, volume));
                let told = volumes.map(|volume| {
                    let path = group.path(&volume.name);
                    told::volume(&path, volume, &told::Now::of(engine, &path))
                });
                Ok(told.collect())
            })
            .await?;
        Ok(Response::new(GetLvListResponse { volumes }))
    }

    async fn get_free_bytes(
        &self,
        request: Request<GetFreeBytesRequest>,
    ) -> Result<Response<GetFreeBytesResponse>, Status> {
        let name = request.into_inner().device_class;
        let free = self
            .host
            .blocking(move |engine, desired| {
                let class = class(desired, &name)?;
                Ok(engine.capacity(class, &options_for(class, options(class))).unwrap_or_default())
            })
            .await?;
        Ok(Response::new(GetFreeBytesResponse { free_bytes: free.0 }))
    }

    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(&self, _: Request<Empty>) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(tell(Arc::clone(&self.host), self.ending.clone(), sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// Tells at once, whenever something else is to be told, and now and then, until nobody listens or we end.
async fn tell(
    host: Arc<HostVolumes>,
    mut ending: watch::Receiver<bool>,
    listener: mpsc::Sender<Result<WatchResponse, Status>>,
) {
    let mut changes = host.engine.watch();
    let mut configuration = host.configuration.watch();
    let mut last: Option<(WatchResponse, Instant)> = None;
    loop {
        changes.mark_unchanged();
        configuration.mark_unchanged();
        let now = match host.blocking(|engine, desired| Ok(fill(engine, desired))).await {
            Ok(now) => now,
            Err(error) => return drop(listener.send(Err(error.into())).await),
        };
        let is_due = |(told, when): &(WatchResponse, Instant)| *told != now || when.elapsed() >= INTERVAL;
        if last.as_ref().is_none_or(is_due) {
            if listener.send(Ok(now.clone())).await.is_err() {
                return;
            }
            last = Some((now, Instant::now()));
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            changed = configuration.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(INTERVAL) => {}
            () = listener.closed() => return,
            _ = ending.wait_for(|ending| *ending) => return,
        }
    }
}

/// How full all classes are. What is told as free of one is what a new volume of it would get.
fn fill(engine: &Arc<Engine<Linux>>, desired: &Desired) -> WatchResponse {
    let inventory = engine.inventory();
    let mut all = WatchResponse::default();
    for class in &desired.classes {
        let available = engine.capacity(class, &options_for(class, options(class))).unwrap_or(Bytes::ZERO);
        let group = inventory.groups.get(&class.group).map(AsRef::as_ref);
        let pool = class.pool().zip(group).and_then(|(pool, group)| {
            Some((group.volumes.get(pool)?, engine.runner().pool(&group.path(pool)).ok().flatten()))
        });
        if class.default {
            all.free_bytes = available.0;
        }
        all.items.push(told::item(class, available, group, pool));
    }
    all
}
