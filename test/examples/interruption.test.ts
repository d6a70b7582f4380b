import { Interruption } from '../../examples/train/interruption';

const exit = jest.spyOn(process, 'exit').mockImplementation(() => undefined as never);
let interruption: Interruption;

beforeEach(() => {
  jest.useFakeTimers({ now: 0 });
  exit.mockClear();
  interruption = new Interruption();
});

afterEach(() => {
  interruption.end();
  jest.useRealTimers();
});

test('the first Ctrl-C asks, a later one ends the program', () => {
  expect(interruption.requested).toBe(false);
  process.emit('SIGINT');
  expect(interruption.requested).toBe(true);
  jest.advanceTimersByTime(1000);
  expect(exit).not.toHaveBeenCalled();
  process.emit('SIGINT');
  expect(exit).toHaveBeenCalledWith(130);
});

// The terminal sends it to the whole process group, and npm passes it on once more.
test('the same Ctrl-C twice is one', () => {
  process.emit('SIGINT');
  jest.advanceTimersByTime(5);
  process.emit('SIGINT');
  expect(exit).not.toHaveBeenCalled();
});

test('after its end the signals are as they were', () => {
  interruption.end();
  expect(process.listeners('SIGINT')).toHaveLength(0);
});
