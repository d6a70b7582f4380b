import { systemInfo } from '../../../lib';

// Prints what the library made of the environment variables; set in JavaScript first, if an argument says so.
process.stdout.write(JSON.stringify(systemInfo()));
