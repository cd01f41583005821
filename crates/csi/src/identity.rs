//! Who this is and what it can do.

use tonic::{Request, Response, Status};

use crate::proto::plugin_capability::service::Type as Service;
use crate::proto::plugin_capability::volume_expansion::Type as Expansion;
use crate::proto::plugin_capability::{self, Type};
use crate::proto::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse, identity_server,
};

/// The Identity service.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The driver's name.
    pub name: String,
    /// The version of this program.
    pub version: String,
}

#[tonic::async_trait]
impl identity_server::Identity for Identity {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let manifest = Default::default();
        let info =
            GetPluginInfoResponse { name: self.name.clone(), vendor_version: self.version.clone(), manifest };
        Ok(Response::new(info))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |service: Service| Type::Service(plugin_capability::Service { r#type: service.into() });
        let expansion = |expansion: Expansion| {
            Type::VolumeExpansion(plugin_capability::VolumeExpansion { r#type: expansion.into() })
        };
        let capabilities = [
            service(Service::ControllerService),
            service(Service::VolumeAccessibilityConstraints),
            expansion(Expansion::Online),
            expansion(Expansion::Offline),
        ];
        let capabilities =
            capabilities.map(|capability| PluginCapability { r#type: Some(capability) }).to_vec();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
