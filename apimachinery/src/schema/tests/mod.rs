mod patterns;
mod recorded;
mod table;
mod walks;
