//! The programs `frontend`, `accelerator` and `qdl` as processes, and the fuzz targets' seeds.

#[path = "../common/mod.rs"]
mod common;

mod away;
mod bert;
mod cli;
mod devices;
mod faults;
mod fuzz;
mod libfabric;
mod limits;
mod live;
mod local;
mod models;
mod network;
mod own_model;
mod said;
mod scenarios;
mod submission;
mod tokens;
mod topology;
mod tune;
