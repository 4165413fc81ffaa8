//! From the flags to a client, as kubectl finds its cluster.

use super::args::Cluster;
use crate::api::Api;
use crate::engine::{Failure, exit};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// The cluster, and the namespace that is meant where none is named.
pub(super) async fn connect(args: &Cluster) -> Result<(Api, String), Failure> {
    let hint = "see `kubectl config view`; --kubeconfig and --context choose another one";
    let wrong = |why: String| {
        Failure::new(exit::USAGE, format!("read the configuration of the cluster: {why}"))
            .hint(hint)
    };
    let options = KubeConfigOptions {
        context: args.context.clone(),
        cluster: args.cluster.clone(),
        user: args.user.clone(),
    };
    let chosen = options.context.is_some() || options.cluster.is_some() || options.user.is_some();
    let mut config = match &args.kubeconfig {
        Some(file) => {
            let read = Kubeconfig::read_from(file).map_err(|why| wrong(why.to_string()))?;
            Config::from_custom_kubeconfig(read, &options)
                .await
                .map_err(|why| wrong(why.to_string()))?
        }
        None if chosen => {
            Config::from_kubeconfig(&options).await.map_err(|why| wrong(why.to_string()))?
        }
        None => Config::infer().await.map_err(|why| wrong(why.to_string()))?,
    };
    if let Some(user) = &args.impersonate {
        config.auth_info.impersonate = Some(user.clone());
        let groups = args.impersonate_groups.clone();
        config.auth_info.impersonate_groups = (!groups.is_empty()).then_some(groups);
    }
    // Requests are repeated where it is known how often, and for how long.
    config.default_retry = false;
    let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = Client::try_from(config).map_err(|why| wrong(why.to_string()))?;
    Ok((Api::new(client), namespace))
}
