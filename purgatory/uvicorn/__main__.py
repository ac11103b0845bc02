"""`python -m purgatory.uvicorn app:app …`: uvicorn with its own options, and with requests that are parked."""

from uvicorn.main import main

if __name__ == "__main__":
    main(default_map={"http": "purgatory.uvicorn:ParkingProtocol"}, prog_name="python -m purgatory.uvicorn")
