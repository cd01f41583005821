//! A client of lvmd.

use std::path::Path;

use lab_csi::Error;
use lvms_lvmd::proto::GetLvListRequest;
use lvms_lvmd::proto::vg_service_client::VgServiceClient;
use tokio::runtime::Builder;
use tonic::transport::Endpoint;

/// The names of a class's volumes.
pub(crate) fn names(socket: &Path, class: &str) -> Result<Vec<String>, Error> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let channel = Endpoint::try_from(format!("unix://{}", socket.display()))?.connect().await?;
        let request = GetLvListRequest { device_class: class.to_owned() };
        let list = VgServiceClient::new(channel).get_lv_list(request).await?.into_inner();
        Ok(list.volumes.into_iter().map(|volume| volume.name).collect())
    })
}
