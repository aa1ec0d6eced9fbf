mod hostile;
mod lossless;
mod recorded;
mod scalars;
mod shapes;
mod upstream;
