"""Tests against real servers, run as plain processes from Maven artifacts."""
