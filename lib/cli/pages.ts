/** A report in each form. */
export interface Pages {
  readonly json: string;
  readonly terminal: string;
  readonly markdown: string;
  readonly chart: string;
}
