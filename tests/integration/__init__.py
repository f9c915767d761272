"""Tests against real servers, started as plain processes from Maven artifacts."""
